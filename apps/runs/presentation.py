"""An episode as its page draws it: turns, token rows, where the seconds went. Pure but for one percentile."""

from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from apps.runs.models import Episode
from gpu_workers.contracts.groups import EpisodeRecord

_ROLES = {"system": "Task", "user": "User", "assistant": "Policy", "tool": "Sandbox"}
_FOLDED = 24  # prompt tokens shown before the first sampled one


@dataclass(frozen=True)
class Turn:
    """One message. `example`: a worked example put before the task; `sampled`: the policy wrote it."""

    role: str
    who: str
    text: str
    num_tokens: int
    seconds: float
    sampled: bool
    example: bool
    call: Any = None
    versions: str = ""


@dataclass(frozen=True)
class TokenCell:
    """One token: text, CSS classes, what is said of it."""

    text: str
    classes: str
    detail: str


@dataclass(frozen=True)
class TokenRow:
    """Tokens in a row that were all sampled, or all not."""

    sampled: bool
    cells: list[TokenCell]


@dataclass(frozen=True)
class Timeline:
    """Seconds by boundary, drawn to scale; order within the episode is not stored."""

    total: float
    parts: list[tuple[str, int, float, float]] = field(default_factory=list)  # name, colour, start, seconds


def conversation(record: EpisodeRecord, episode: Episode) -> list[Turn]:
    """Turns with what they cost. What comes before the last prompt message and was not sampled is an example."""
    first = next((i for i, turn in enumerate(record.turns) if turn.finish_reason), len(record.turns))
    changed = episode.min_version != episode.max_version
    version = f"v{episode.min_version}–v{episode.max_version}" if changed else f"v{episode.min_version}"
    turns = []
    for index, turn in enumerate(record.turns):
        sampled = bool(turn.finish_reason)
        example = index < first and turn.role not in ("system",) and index != first - 1
        seconds = turn.tool_call.duration_seconds if turn.tool_call else turn.engine_seconds
        turns.append(
            Turn(
                role=turn.role,
                who=_ROLES.get(turn.role, turn.role),
                text=turn.text,
                num_tokens=turn.token_stop - turn.token_start if index >= first else 0,
                seconds=seconds,
                sampled=sampled,
                example=example,
                call=turn.tool_call,
                versions=version if sampled else "",
            )
        )
    return turns


def token_rows(arrays: dict[str, list[Any]]) -> tuple[list[TokenRow], int, str]:
    """Tokens in rows that alternate between sampled and given; most of the prompt is folded away."""
    ids, mask, texts = arrays["ids"], arrays["mask"], arrays["texts"]
    first = next((i for i, flag in enumerate(mask) if flag), len(ids))
    start = max(0, first - _FOLDED)
    names = {version: f"v{'abcd'[n % 4]}" for n, version in enumerate(_versions(arrays))}
    cells = [
        (bool(mask[i]), _cell(i, texts[i] if texts else str(ids[i]), arrays, names)) for i in range(start, len(ids))
    ]
    rows = [TokenRow(sampled, [cell for _, cell in run]) for sampled, run in groupby(cells, key=lambda pair: pair[0])]
    return rows, start, "" if texts else "The transcript holds no text of tokens: ids are shown instead."


def _versions(arrays: dict[str, list[Any]]) -> list[int]:
    return sorted({version for version in arrays["versions"] if version is not None})


def _cell(index: int, text: str, arrays: dict[str, list[Any]], names: dict[int, str]) -> TokenCell:
    shown = text.replace("\n", "⏎").replace("\t", "⇥") or "∅"
    logprob, version = arrays["logprobs"][index], arrays["versions"][index]
    detail = f"token {index}, id {arrays['ids'][index]}, “{shown}”"
    if logprob is None:
        return TokenCell(shown, "m0", f"{detail} · not sampled, loss mask 0")
    words = f"rollout log-probability {logprob:.3f} nats".replace("-", "−")
    classes = f"m1 lp h{_heat(logprob)} {names[version]}"
    return TokenCell(shown, classes, f"{detail} · {words} · sampled by v{version} · loss mask 1")


def _heat(logprob: float) -> int:
    for level, bound in enumerate((-0.25, -0.75, -1.5, -2.6)):
        if logprob > bound:
            return level
    return 4


def timeline(episode: Episode) -> Timeline:
    """How the seconds of an episode divide; "other" is the rest: sandbox start, messages, packing."""
    parts, start = [], 0.0
    known = [
        ("Queue", 7, episode.queue_seconds),
        ("Engine", 1, max(0.0, episode.engine_seconds - episode.queue_seconds)),  # the engine's time holds its queue
        ("Tools", 3, episode.tool_seconds),
        ("Verifier", 4, episode.verifier_seconds),
    ]
    rest = max(0.0, episode.total_seconds - sum(seconds for *_, seconds in known))
    for name, colour, seconds in [*known, ("Other", 0, rest)]:
        parts.append((name, colour, start, seconds))
        start += seconds
    return Timeline(max(episode.total_seconds, start), parts)


def rank_of(episode: Episode) -> tuple[int, int] | None:
    """Percentile of the episode's duration within its run, and of how many; None outside a run."""
    if episode.group.run_id is None:
        return None
    others = Episode.objects.filter(group__run_id=episode.group.run_id)
    count = others.count()
    below = others.filter(total_seconds__lt=episode.total_seconds).count()
    return (round(100 * below / count) if count else 0, count)
