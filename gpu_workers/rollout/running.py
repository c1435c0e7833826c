"""The groups that this worker process runs now, and what the control plane says of them while they run."""

import asyncio
import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator

from gpu_workers.contracts.messages import GroupSignal, PolicyRef
from gpu_workers.contracts.seams import GenerateRequest, GenerateResult, RolloutEngine, WorkerError

_REMEMBERED = 100_000  # groups that were given up, whose messages may still be in the broker


class GroupCancelled(Exception):
    """The control plane gave the group up; there is nothing to report."""


class RunningGroup:
    """One group in its event loop. `policy` is the version that its next tokens are sampled from."""

    def __init__(self, policy: PolicyRef) -> None:
        self.policy = policy
        self.cancelled = ""  # the reason
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._moved = asyncio.Event()

    def signal(self, signal: GroupSignal) -> None:
        """From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has just ended, and the group with it
            self._loop.call_soon_threadsafe(self._apply, signal)

    def _apply(self, signal: GroupSignal) -> None:
        if signal.policy is not None:
            if signal.policy.version > self.policy.version:
                self.policy = signal.policy
                self._moved.set()
                self._moved = asyncio.Event()
        elif not self.cancelled and self._task is not None:
            self.cancelled = signal.reason or "given up"
            self._task.cancel()

    async def generate(self, engine: RolloutEngine, request: GenerateRequest) -> GenerateResult:
        """The engine's answer, or what there is of it (finish reason abort) when the policy moves on meanwhile."""
        answer = asyncio.ensure_future(engine.generate(request))
        moved = asyncio.ensure_future(self._moved.wait())
        try:
            await asyncio.wait({answer, moved}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                with contextlib.suppress(WorkerError):  # then the turn ends on the version that it began with
                    await engine.abort(request.request_id)
            return await answer
        finally:
            moved.cancel()
            answer.cancel()


_running: dict[str, list[RunningGroup]] = {}
_given_up: OrderedDict[str, str] = OrderedDict()
_lock = threading.Lock()


@contextlib.contextmanager
def running(group_id: str, policy: PolicyRef) -> Iterator[RunningGroup]:
    """Let signals reach the group while its task is inside. Raises GroupCancelled when one gives it up, or has."""
    group = RunningGroup(policy)
    with _lock:
        if group_id in _given_up:
            raise GroupCancelled(_given_up[group_id])
        _running.setdefault(group_id, []).append(group)
    try:
        yield group
    except asyncio.CancelledError:
        if not group.cancelled or group._task is None:
            raise
        group._task.uncancel()
        raise GroupCancelled(group.cancelled) from None
    finally:
        with _lock:
            _running[group_id].remove(group)
            if not _running[group_id]:
                del _running[group_id]


def deliver(signal: GroupSignal) -> int:
    """Pass a signal on to the groups that run here, and remember those given up; returns how many run here."""
    with _lock:
        if signal.policy is None:
            _given_up.update(dict.fromkeys(signal.group_ids, signal.reason or "given up"))
            while len(_given_up) > _REMEMBERED:
                _given_up.popitem(last=False)
        found = [group for group_id in signal.group_ids for group in _running.get(group_id, [])]
    for group in found:
        group.signal(signal)
    return len(found)
