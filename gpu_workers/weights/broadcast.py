"""Collective broadcast: the fleet worker reads a checked model folder and sends it to every engine at once."""

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_workers.contracts.messages import AdapterInstall, PolicyInstalled
from gpu_workers.contracts.seams import CollectiveEngine, GroupAddress, RolloutEngine, WorkerError
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.models.folder import WEIGHTS
from gpu_workers.weights import course as _course
from gpu_workers.weights.adapter import InstallError
from gpu_workers.weights.buckets import BUCKET_BYTES, Spans, check_same_layout, open_file, plan_buckets
from gpu_workers.weights.course import Course, Gate
from gpu_workers.weights.in_place import Brought, InPlaceTransfer, replace_weights
from gpu_workers.weights.sender import Sender, SenderProcess, keep_sender, take_sender
from gpu_workers.weights.served import same_bytes_in, serving_of
from gpu_workers.weights.whole import whole_folder

DEADLINE_SECONDS = 120.0  # of the meeting, and of each bucket


class BroadcastTransfer(InPlaceTransfer):
    """WeightTransfer over one process group: rank 0 is here, every engine is a further rank.

    The group is formed while the engines go on; then all are paused together, but for those that change nothing before
    the last tensor, which are paused after it, and take the tensors bucket by bucket.
    A version is named only when all tensors have come and the engine's digest has changed. After a failure an engine
    goes on with its old weights where its digest says that it still has them; otherwise it reads the new ones from
    disk; where it cannot, it stays paused.
    """

    def __init__(
        self,
        engines: Sequence[tuple[str, CollectiveEngine]],
        store: ObjectStore,
        cache: Path,
        *,
        base: Path,
        address: str,
        seconds: float = DEADLINE_SECONDS,
        bucket_bytes: int = BUCKET_BYTES,
        sender: Callable[[], Sender] = take_sender,
    ) -> None:
        """`base`: folder of the base model; `address`: of this host, as the engines reach it."""
        super().__init__(engines, store, cache)
        self._members = dict(engines)
        self._base, self._address, self._seconds = base, address, seconds
        self._bucket_bytes, self._make_sender = bucket_bytes, sender

    async def bring(self, item: AdapterInstall, base_fingerprint: str) -> Brought:
        """Raises InstallError. What it returns is completed by the course of the broadcast."""
        folder = await asyncio.to_thread(whole_folder, self._store, self._cache, item, base_fingerprint)
        spans = open_file(folder / WEIGHTS).spans
        check_same_layout(f"weights {item.name}", spans, self._base_spans())
        self._folder, self._buckets = folder, plan_buckets(spans, self._bucket_bytes)

        async def never(url: str, engine: RolloutEngine, same_bytes: bool | None) -> None:
            raise InstallError(f"engine {url} is no member of the broadcast")

        return Brought(
            put=never,
            same_bytes=lambda _, info: same_bytes_in(serving_of(info), item.sha256),
            num_bytes=sum(bucket.num_bytes for bucket in self._buckets),
        )

    def _base_spans(self) -> Spans:
        file = self._base / WEIGHTS
        if not file.is_file():
            raise InstallError(
                f"{file} is missing: a broadcast is checked against the base model's tensors, so its folder must be "
                "on the fleet worker's host (python -m gpu_workers.models … --home HOME)"
            )
        return open_file(file).spans

    async def install(
        self, install: Sequence[AdapterInstall], retire: Sequence[str], *, base_fingerprint: str = ""
    ) -> PolicyInstalled:
        """Raises InstallError that says of every engine that failed what it has now."""
        started = time.monotonic()
        report = PolicyInstalled(job_id="", ok=True, engines=list(self._members))
        if install:
            item = max(install, key=lambda one: one.version)
            brought = await self.bring(item, base_fingerprint)
            infos = {url: await engine.info() for url, engine in self._members.items()}
            behind = {url: info.weight_version for url, info in infos.items() if info.weight_version != item.name}
            if behind:
                report.pause_seconds, report.message = await self._broadcast(item, brought, behind)
                report.num_bytes = brought.num_bytes
            for url in infos.keys() - behind.keys():
                await replace_weights(url, self._members[url], item, brought)  # puts nothing there
            report.installed = [item.name]
        report.duration_seconds = time.monotonic() - started
        return report

    async def _broadcast(
        self, item: AdapterInstall, brought: Brought, versions: Mapping[str, str]
    ) -> tuple[float, str]:
        """To the engines that have these versions. Longest pause in seconds, and what had to be repaired."""
        urls = list(versions)
        sender = self._make_sender()
        course: Course | None = None
        try:
            course = await self._form(sender, item, versions)
            sending = asyncio.create_task(self._send_all(sender, course))
            try:
                pauses = await self._replace_all(item, brought, urls, course)
                await sending
            finally:
                if course.failed.is_set():
                    await sending  # which ends with the connections
                sending.cancel()
            await self._leave(urls, course.group.name)
            await sender.leave()
        except BaseException:
            sender.kill()
            if course is not None:
                await self._leave(urls, course.group.name)
            raise
        if isinstance(sender, SenderProcess):
            keep_sender(sender)
        return max(pauses), "; ".join(course.repaired)

    async def _form(self, sender: Sender, item: AdapterInstall, versions: Mapping[str, str]) -> Course:
        """Every engine goes on meanwhile. Raises InstallError; nothing has changed then."""
        urls = list(versions)
        devices = {url: await self._members[url].device() for url in urls}
        backend = "nccl" if "cuda" in devices.values() else "gloo"
        counts = {url: await self._members[url].num_ranks(backend) for url in urls}
        port = await sender.serve(self._address, seconds=self._seconds)
        name = f"ratchet-{uuid.uuid4().hex[:12]}"
        group = GroupAddress(name, self._address, port, 1 + sum(counts.values()), backend)
        first, joining = 1, list[asyncio.Task[None]]()
        for url in urls:
            joining.append(asyncio.create_task(self._members[url].join_group(group, first, seconds=self._seconds)))
            first += counts[url]
        joining.append(asyncio.create_task(sender.form(name, group.world_size, backend, seconds=self._seconds)))
        try:
            await asyncio.gather(*joining)
        except WorkerError as error:
            sender.kill()  # those that still wait for the others are told
            await asyncio.gather(*joining, return_exceptions=True)
            await self._leave(urls, name)
            raise InstallError(f"no group of {len(urls)} engines could be formed: {error}", retryable=True) from error
        digests = {url: await self._members[url].weights_digest() for url in urls}
        swapping = frozenset([url for url in urls if await self._members[url].swaps_at_end()])
        started = Gate(len(urls) + 1)
        return Course(
            item, self._folder, group, self._buckets, self._seconds, started, dict(versions), digests, swapping
        )

    async def _replace_all(
        self, item: AdapterInstall, brought: Brought, urls: Sequence[str], course: Course
    ) -> list[float]:
        """Each engine by the common path, side by side. Raises one InstallError for all that failed."""

        async def put(url: str, _: RolloutEngine, same_bytes: bool | None) -> None:
            await course.take(url, self._members[url], same_bytes=same_bytes)

        async def stage(url: str, _: RolloutEngine) -> None:
            await course.stage(url, self._members[url])

        async def one(url: str) -> float:
            try:
                pause = await replace_weights(url, self._members[url], item, replace(brought, put=put, stage=stage))
                if pause is None:
                    raise InstallError(f"engine {url} was given weights {item.name} by somebody else", retryable=True)
                return pause
            except WorkerError as error:
                course.fail(str(error))
                course.started.abort()  # nothing has been sent if others still wait
                raise

        results = await asyncio.gather(*(one(url) for url in urls), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        for failure in failures:
            if not isinstance(failure, WorkerError):
                raise failure
        if failures:
            said = [*dict.fromkeys(map(str, failures)), *course.repaired]
            raise InstallError(
                "; ".join(said), retryable=all(f.retryable for f in failures if isinstance(f, WorkerError))
            )
        return [result for result in results if isinstance(result, float)]

    async def _send_all(self, sender: Sender, course: Course) -> None:
        """Begins when every engine may be sent to. At the first failure the connections are closed, after a moment."""
        if not await course.started.wait():
            return
        sending = asyncio.create_task(self._send_buckets(sender, course))
        failing = asyncio.create_task(course.failed.wait())
        await asyncio.wait({sending, failing}, return_when=asyncio.FIRST_COMPLETED)
        failing.cancel()
        if course.failed.is_set():
            await asyncio.sleep(_course.GRACE_SECONDS)
            sender.kill()
        await sending

    async def _send_buckets(self, sender: Sender, course: Course) -> None:
        try:
            for bucket in course.buckets:
                await sender.send(self._folder / WEIGHTS, bucket, seconds=self._seconds + _course.GRACE_SECONDS)
        except WorkerError as error:
            course.fail(str(error))

    async def _leave(self, urls: Sequence[str], group: str) -> None:
        """Close the group on every engine that answers; one that has gone has left it."""
        await asyncio.gather(*(self._members[url].leave_group(group) for url in urls), return_exceptions=True)
