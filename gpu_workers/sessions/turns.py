"""One turn being sampled: its choices on the engines, parts that an update of the weights cuts it into, the record."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field

from gpu_workers.contracts.constraints import Constraint
from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.messages import Sampling
from gpu_workers.contracts.seams import GenerateRequest, GenerateResult, RolloutEngine, WorkerError
from gpu_workers.contracts.tasks import ToolSpec
from gpu_workers.sessions.chat import ChatTemplate
from gpu_workers.sessions.conversation import Node, Place
from gpu_workers.sessions.engines import abort_quietly, is_unreachable, results_of
from gpu_workers.sessions.formats import Reading, plain_length, read_calls
from gpu_workers.sessions.journal import JournalError
from gpu_workers.sessions.records import CallMade, Choice, Said, Turn, spans_of
from gpu_workers.sessions.session import PART_SEED_STRIDE, TURN_SEED_STRIDE
from gpu_workers.sessions.table import Session, SessionError, SessionTable
from gpu_workers.sessions.tokens import check_lengths, versions_of

UNFINISHED = "\ufffd"  # what a cut multi-byte character decodes to
CHOICE_SEED_STRIDE = 15_485_863
MAX_PARTS = 64  # an engine that aborts a turn so often without our asking is broken

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TurnOptions:
    """What the agent asked for. `sampling.seed` is the first choice's."""

    sampling: Sampling
    num_choices: int = 1
    stop: tuple[str, ...] = ()
    tools: tuple[ToolSpec, ...] = ()  # whose calls are looked for; empty: the turn is text
    parallel_calls: bool = True
    constraint: Constraint | None = None


@dataclass
class Sample:
    """One choice while it grows."""

    index: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish_reason: str = ""
    cached_tokens: int = 0
    engine_seconds: float = 0.0
    queue_seconds: float = 0.0

    def take(self, start: int, result: GenerateResult, versions: Sequence[int]) -> None:
        """The part that began at `start`, all of it so far."""
        self.ids[start:] = result.output_ids
        self.logprobs[start:] = result.logprobs
        self.versions[start:] = versions

    def begin_again(self) -> None:
        """Forget what was sampled: a grammar cannot be entered in its middle."""
        self.take(0, GenerateResult([], [], ""), [])


class RunningTurn:
    """From its arrival to its record. It sees the conversation as it was when it arrived."""

    def __init__(
        self,
        table: SessionTable,
        session: Session,
        place: Place,
        options: TurnOptions,
        template: ChatTemplate,
        engines: Sequence[RolloutEngine],
    ) -> None:
        self._table, self._session, self._template = table, session, template
        self._engines = list(engines)
        self.place, self.options = place, options
        self.policy = session.policy
        num_observed = sum(len(piece.ids) for piece in place.pieces)
        num_sampled = options.num_choices * options.sampling.max_new_tokens
        self.number = table.start_turn(session, num_observed + num_sampled)
        self.samples = [Sample(index) for index in range(options.num_choices)]
        self._id = f"{session.id}.{self.number}"
        self._sampling_now: dict[str, RolloutEngine] = {}
        self._stopping: set[asyncio.Future[None]] = set()
        self._stopped = self._over = False
        self._following: asyncio.Future[None] | None = None
        session.running[self._id] = self.stop

    def stop(self) -> None:
        """End it with what there is: the engines are told, and what they answer is the end of the turn."""
        self._stopped = True
        for request_id, engine in self._sampling_now.items():
            self._stopping.add(asyncio.ensure_future(abort_quietly(engine, request_id)))

    async def sample(self) -> None:
        """Fill the samples. Raises WorkerError, and then no choice is kept."""

        async def whole(sample: Sample) -> None:
            async for _ in self._parts(sample, stream=False):
                pass

        await _side_by_side([whole(sample) for sample in self.samples])

    async def stream(self) -> AsyncIterator[Sample]:
        """A sample each time that it has grown. Leaving early ends the engines' requests."""
        grown: asyncio.Queue[Sample | None] = asyncio.Queue()

        async def follow(sample: Sample) -> None:
            async for _ in self._parts(sample, stream=True):
                grown.put_nowait(sample)

        async def follow_all() -> None:
            try:
                await _side_by_side([follow(sample) for sample in self.samples])
            finally:
                grown.put_nowait(None)

        self._following = asyncio.ensure_future(follow_all())
        self._following.add_done_callback(_look_at)
        while (sample := await grown.get()) is not None:
            yield sample
        await self._following

    def finish(self) -> list[Node]:
        """Record what was sampled. Raises SessionError, JournalError.

        Choices without a token are not kept, and neither is a turn that has none.
        """
        self._over = True
        if self._session.closed:
            raise SessionError("session_not_found", f"session {self._session.id} was closed while the turn was sampled")
        kept = [sample for sample in self.samples if sample.ids]
        if not kept:
            return []
        turn = Turn(
            number=self.number,
            parent=-1 if self.place.node is None else self.place.node.index,
            pieces=self.place.pieces,
            choices=[self._choice(sample) for sample in kept],
            policy=self.policy,
            at=time.time(),
        )
        return self._table.add(self._session, turn)

    def fail(self) -> None:
        """Nothing of it is kept: the engine gave no whole turn."""
        self._over = True

    def close(self) -> None:
        """Always, at the end. A turn that nobody finished was left by its agent: its tokens are kept as aborted."""
        if self._following is not None:
            self._following.cancel()
        self._session.running.pop(self._id, None)
        self._table.end_turn(self._session, self.number)
        if self._over:
            return
        try:
            self.finish()
        except (SessionError, JournalError) as error:
            logger.warning("an aborted turn of session %s is not kept: %s", self._session.id, error)

    def text(self, sample: Sample) -> str:
        """What the agent may read of it: no special token, no stop text, no half character while it grows."""
        text = self._cut(self._template.decode(sample.ids))
        if sample.finish_reason:
            return text
        held = max((len(stop) for stop in self.options.stop), default=1) - 1
        return text[: max(len(text) - held, 0)].rstrip(UNFINISHED)

    def plain_text(self, sample: Sample) -> str:
        """The beginning of its content that no tool call can take back any more."""
        text = self.text(sample)
        if not self.options.tools:
            return text
        if sample.finish_reason:
            return self.reply(sample)[0].content
        marked = self._cut(self._template.decode_marked(sample.ids))
        length = plain_length(marked, self._session.form)
        plain = self._template.without_special(marked[:length])
        return plain.rstrip() if text.startswith(plain.rstrip()) else ""

    def reply(self, sample: Sample) -> tuple[Said, str]:
        """A finished sample as a message, and why a call in it is none."""
        reading = self._reading(sample)
        made = tuple(
            CallMade(
                f"call_{self.number}_{sample.index}_{i}", call.name, json.dumps(call.arguments, ensure_ascii=False)
            )
            for i, call in enumerate(reading.calls[: None if self.options.parallel_calls else 1])
        )
        return Said(role="assistant", content=reading.content, calls=made), reading.error

    def _reading(self, sample: Sample) -> Reading:
        text = self.text(sample)
        if not self.options.tools or sample.finish_reason == "abort":
            return Reading(text)
        parameters = {tool.name: tool.parameters for tool in self.options.tools}
        marked = self._cut(self._template.decode_marked(sample.ids))
        reading = read_calls(marked, self._session.form, parameters)
        if not reading.calls:
            return Reading(text, error=reading.error)
        return Reading(self._template.without_special(reading.content), reading.calls)

    def _choice(self, sample: Sample) -> Choice:
        sample.finish_reason = sample.finish_reason or "abort"
        reply, error = self.reply(sample)
        return Choice(
            ids=list(sample.ids),
            logprobs=list(sample.logprobs),
            spans=spans_of(sample.versions),
            finish_reason=sample.finish_reason,
            reply=reply,
            text=self._template.decode(sample.ids),
            call_error=error,
            engine_seconds=sample.engine_seconds,
            queue_seconds=sample.queue_seconds,
            constrained=self.options.constraint is not None,
        )

    async def _parts(self, sample: Sample, *, stream: bool) -> AsyncIterator[None]:
        """Sample until the policy ends the turn. An abort that we did not ask for (new weights) begins another part."""
        for part in range(MAX_PARTS):
            if self._stopped:
                sample.finish_reason = "abort"
                return
            if self.options.constraint is not None and sample.ids:
                if stream:
                    raise WorkerError(Boundary.ENGINE, "a constrained stream was cut short and cannot go on")
                sample.begin_again()
            request, start = self._request(sample, part), len(sample.ids)
            engine, result = self._engines[0], None
            self._sampling_now[request.request_id] = engine
            try:
                async with contextlib.aclosing(results_of(engine, request, stream=stream)) as results:
                    async for result in results:
                        self._take(sample, start, result)
                        yield
            except WorkerError as error:
                # One that does not answer: what it has sampled stays, another goes on.
                if self._stopped or not is_unreachable(error) or self._engines == [engine]:
                    raise
                if engine in self._engines:
                    self._engines.remove(engine)
                continue
            finally:
                self._sampling_now.pop(request.request_id, None)
            if result is None or not result.finish_reason:
                raise WorkerError(Boundary.ENGINE, "the engine's answer ended early")
            sample.cached_tokens += result.cached_tokens if part == 0 else 0
            sample.engine_seconds += result.engine_seconds
            sample.queue_seconds += result.queue_seconds
            if result.finish_reason != "abort" or self._stopped:
                return
            if len(sample.ids) >= self.options.sampling.max_new_tokens:
                sample.finish_reason = "length"
                yield
                return
        raise WorkerError(Boundary.ENGINE, f"the engine aborted the turn {MAX_PARTS} times")

    def _take(self, sample: Sample, start: int, result: GenerateResult) -> None:
        if self._over:  # what was recorded stays as it is, though the engine's stream has not ended yet
            return
        check_lengths(result)
        sample.take(start, result, versions_of(self.policy, result))
        goes_on = result.finish_reason == "abort" and not self._stopped
        sample.finish_reason = "" if goes_on else result.finish_reason
        if sample.finish_reason and not sample.ids and not self._stopped:
            raise WorkerError(Boundary.ENGINE, "the engine returned no token")

    def _request(self, sample: Sample, part: int) -> GenerateRequest:
        asked = self.options.sampling
        seed = asked.seed + CHOICE_SEED_STRIDE * sample.index + PART_SEED_STRIDE * part
        return GenerateRequest(
            input_ids=self.place.ids + sample.ids,
            sampling=Sampling(
                max_new_tokens=asked.max_new_tokens - len(sample.ids),
                temperature=asked.temperature,
                top_p=asked.top_p,
                seed=seed % 2**63,
            ),
            adapter=self.policy.adapter,
            weights=self.policy.weights,
            request_id=f"{self._id}.{sample.index}.{part}",
            stop=self.options.stop,
            stop_token_ids=(self._template.eos_id,),
            constraint=self.options.constraint,
        )

    def _cut(self, text: str) -> str:
        ends = [index for stop in self.options.stop if (index := text.find(stop)) >= 0]
        return text[: min(ends)] if ends else text


def turn_seed(session: Session) -> int:
    """Seed of the session's next turn: no two turns share one, and a session repeated in order repeats them."""
    return session.spec.seed + TURN_SEED_STRIDE * session.num_started


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


async def _side_by_side(works: Sequence[Coroutine[None, None, None]]) -> None:
    """All of them; the first failure ends the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for work in works:
                tasks.create_task(work)
    except* WorkerError as failures:
        raise failures.exceptions[0] from None


def _look_at(done: "asyncio.Future[None]") -> None:
    """Whoever left the stream never hears of the failure that came after."""
    if not done.cancelled():
        done.exception()
