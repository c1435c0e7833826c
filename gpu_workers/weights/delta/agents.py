"""Who keeps the checkpoint on an engine's host: this process, or an agent there that is asked over HTTP."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import httpx
import msgspec

from gpu_workers.contracts.seams import EngineInfo, RolloutEngine
from gpu_workers.contracts.store import ObjectStore, StoreError
from gpu_workers.weights.adapter import InstallError
from gpu_workers.weights.delta.errors import DeltaError, NoSpace
from gpu_workers.weights.delta.keeping import CheckpointKeeper, Held, Wanted
from gpu_workers.weights.served import Serving, same_bytes_in, serving_of

T = TypeVar("T")
H = TypeVar("H")

SECRET_HEADER = "X-Ratchet-Agent-Secret"  # noqa: S105
BRING_SECONDS = 1800.0  # a whole model may have to be fetched
CONNECT_SECONDS = 5.0


class BringRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`serves`: what engines of this host say they have."""

    wanted: Wanted
    serves: list[Serving] = []


class BringAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`same_bytes`: whether each of `serves` is exactly the wanted weights; null where its folder does not tell."""

    held: Held
    same_bytes: list[bool | None] = []


class Told(Protocol):
    """An agent's answer, as far as it is about what engines served: in the order of the request's `serves`."""

    @property
    def same_bytes(self) -> Sequence[bool | None]: ...


class Agent(Protocol):
    """Brings a version to one host. Raises InstallError."""

    async def bring(self, request: BringRequest) -> BringAnswer: ...


class LocalAgent:
    """The engines' host is this one."""

    def __init__(self, store: ObjectStore, cache: Path) -> None:
        self._keeper = CheckpointKeeper(store, cache)

    async def bring(self, request: BringRequest) -> BringAnswer:
        try:
            return await asyncio.to_thread(answer_bring, self._keeper, request)
        except (DeltaError, StoreError) as error:
            raise InstallError(str(error), retryable=isinstance(error, NoSpace | StoreError)) from error
        except OSError as error:
            text = f"weights {request.wanted.name} cannot be written below {self._keeper.cache}: {error}"
            raise InstallError(text, retryable=True) from error


class HttpAgent:
    """`python -m gpu_workers.weights.agent` at a URL."""

    def __init__(self, url: str, secret: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._url, self._secret, self._transport = url, secret, transport

    async def bring(self, request: BringRequest) -> BringAnswer:
        return await self.ask("/weights/bring", request, BringAnswer)

    async def ask(self, path: str, request: msgspec.Struct, answer: type[T]) -> T:
        """The answer to one call. Raises InstallError with the agent's own reason."""
        timeout = httpx.Timeout(BRING_SECONDS, connect=CONNECT_SECONDS)
        try:
            async with httpx.AsyncClient(timeout=timeout, transport=self._transport) as client:
                headers = {SECRET_HEADER: self._secret, "Content-Type": "application/json"}
                response = await client.post(
                    f"{self._url}{path}", content=msgspec.json.encode(request), headers=headers
                )
        except httpx.HTTPError as error:
            text = f"agent {self._url} does not answer ({error or type(error).__name__}): start it on the engine's host"
            raise InstallError(text, retryable=True) from error
        if response.status_code != 200:
            raise InstallError(f"agent {self._url}: {_reason(response)}", retryable=response.status_code >= 500)
        try:
            return msgspec.json.decode(response.content, type=answer)
        except msgspec.DecodeError as error:
            raise InstallError(f"agent {self._url} answers what is not its answer ({error})") from error


def of_engines(urls: Iterable[str], agents: Mapping[str, str], here: T, at: Callable[[str], T]) -> dict[str, T]:
    """Engine URL -> its agent: one for each URL of `agents`; `here` for engines without one, which are on this host."""
    made = {url: at(url) for url in set(agents.values())}
    return {url: made.get(agents.get(url, ""), here) for url in urls}


async def served_by_host(
    engines: Sequence[tuple[str, RolloutEngine]], agents: Mapping[str, H]
) -> dict[H, list[Serving]]:
    """Agent -> what the engines of its host say they have, each thing once: it may read a whole file for it."""
    serves: dict[H, list[Serving]] = {}
    for url, engine in engines:
        known, found = serves.setdefault(agents[url], []), serving_of(await engine.info())
        if found not in known:
            known.append(found)
    return serves


def told_by_hosts(
    agents: Mapping[str, H], serves: Mapping[H, Sequence[Serving]], answers: Mapping[H, Told]
) -> Callable[[str, EngineInfo], bool | None]:
    """`Brought.same_bytes` as the agents answered it."""
    told = {agent: dict(zip(served, answers[agent].same_bytes, strict=False)) for agent, served in serves.items()}
    return lambda url, info: told[agents[url]].get(serving_of(info))


def answer_bring(keeper: CheckpointKeeper, request: BringRequest) -> BringAnswer:
    """Blocks. Served folders are looked at first: the version before the last is deleted for the next."""
    same = [same_bytes_in(serving, request.wanted.sha256) for serving in request.serves]
    return BringAnswer(held=keeper.bring(request.wanted), same_bytes=same)


def _reason(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {response.status_code}: {response.text[:200]!r}"
