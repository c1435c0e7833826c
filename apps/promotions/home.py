"""What the home page shows: what waits for this person, what is in production, what runs now."""

from dataclasses import dataclass
from datetime import timedelta

from django.urls import reverse
from django.utils import timezone

from apps.accounts.models import User
from apps.accounts.permissions import Permission, permitted_projects
from apps.evaluations.selectors import Measured, measured_success
from apps.policies.models import Channel, ChannelMove, MoveKind
from apps.policies.selectors import channel_status, visible_channels
from apps.promotions.models import Gate, GateState, GateVerdict
from apps.promotions.selectors import decision_of, decisions_waiting, visible_gates
from apps.reviews.selectors import num_waiting
from apps.runs.models import FINAL_RUN_STATES, Run, RunState
from apps.runs.selectors import visible_runs

_RECENT = timedelta(days=7)
_MAX_STOPPED = 5
_MAX_TEETH = 3
_MAX_RUNS = 10
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


@dataclass(frozen=True)
class Need:
    """One thing that this person can settle. `look`, `glyph` and `word` make its badge."""

    kind: str  # decision | labels | run
    look: str
    word: str
    title: str
    text: str
    href: str
    action: str
    glyph: str = ""
    main: bool = False


@dataclass(frozen=True)
class Production:
    """A channel: accepted policies as teeth, what serves, how good it was measured to be."""

    channel: Channel
    teeth: list[tuple[str, str]]
    measured: Measured | None
    waiting: Gate | None
    complete: bool | None
    num_gateways: int


def needs(user: User) -> list[Need]:
    """Decisions, labels and stopped runs, in that order."""
    return [*map(_gate_need, decisions_waiting(user)), *_label_need(user), *map(_run_need, stopped_runs(user))]


def headline(user_needs: list[Need], num_labels: int) -> list[str]:
    """The first line of the page."""
    decisions = sum(need.kind == "decision" for need in user_needs)
    stopped = sum(need.kind == "run" for need in user_needs)
    waiting = [words for words in (_count(decisions, "decision"), _count(num_labels, "label")) if words]
    lines = []
    if waiting:
        verb = "waits" if decisions + num_labels == 1 else "wait"
        lines.append(f"{' and '.join(waiting)} {verb} for you.")
    if stopped:
        lines.append(f"{_count(stopped, 'run')} stopped before the end.")
    text = lines or ["Nothing waits for you."]
    return [line[:1].upper() + line[1:] for line in text]


def steady(user: User) -> str:
    """Whether production was rolled back lately."""
    since = timezone.now() - _RECENT
    channels = visible_channels(user).filter(policy__isnull=False)
    moves = ChannelMove.objects.filter(channel__in=channels.values("pk"), kind=MoveKind.ROLLBACK, at__gte=since)
    newest = moves.select_related("channel__project", "to_policy").order_by("-at").first()
    if newest is None:
        return "Production is steady: nothing was rolled back in the last 7 days." if channels.exists() else ""
    again = moves.count()
    times = "once" if again == 1 else f"{again} times"
    back = f"{newest.to_policy.slug} in {newest.channel}"
    return f"Production was rolled back {times} in the last 7 days, the last time to {back}."


def stopped_runs(user: User) -> list[Run]:
    """Runs of the last days that halted or failed, where this person may act on them."""
    projects = permitted_projects(user, Permission.RUN_CONTROL)
    since = timezone.now() - _RECENT
    runs = visible_runs(user).filter(project__in=projects.values("pk"), finished_at__gte=since)
    return list(runs.filter(state__in=(RunState.HALTED, RunState.FAILED))[:_MAX_STOPPED])


def runs_now(user: User) -> list[Run]:
    """Open runs, then the newest finished ones."""
    runs = visible_runs(user)
    open_runs = list(runs.exclude(state__in=FINAL_RUN_STATES)[:_MAX_RUNS])
    return [*open_runs, *runs.filter(state__in=FINAL_RUN_STATES)[: max(0, _MAX_RUNS - len(open_runs))]]


def productions(user: User) -> list[Production]:
    """Every channel with a policy that the person may see."""
    channels = visible_channels(user).filter(policy__isnull=False).order_by("project__slug", "name")
    return [production(user, channel) for channel in channels]


def production(user: User, channel: Channel) -> Production:
    """One channel as the home page draws it."""
    gates = visible_gates(user).filter(channel=channel, state__in=(GateState.WAITING, GateState.EVALUATING))
    waiting = gates.order_by("-state", "-id").first()  # "waiting" sorts after "evaluating": it comes first here
    status = channel_status(channel)
    assert channel.policy is not None
    return Production(
        channel, teeth(channel, waiting), measured_success(channel.policy), waiting, status.complete,
        len(status.gateways),
    )  # fmt: skip


def teeth(channel: Channel, waiting: Gate | None = None) -> list[tuple[str, str]]:
    """Accepted policies in order with their looks: t accepted, undone rolled back, held serving, next waiting."""
    drawn: list[list[str]] = []
    accepted: list[int] = []
    for move in channel.moves.select_related("to_policy").order_by("epoch"):
        if move.kind == MoveKind.ROLLBACK:
            if accepted:
                drawn[accepted.pop()][1] = "undone"
        else:
            drawn.append([move.to_policy.slug, "t"])
            accepted.append(len(drawn) - 1)
    if accepted:
        drawn[accepted[-1]][1] = "held"
    shown = drawn[-_MAX_TEETH:]
    if waiting is not None:
        shown.append([waiting.candidate.slug, "next"])
    return [(name, look) for name, look in shown]


def _gate_need(gate: Gate) -> Need:
    look = {GateVerdict.PASS: "pass", GateVerdict.FAIL: "fail", GateVerdict.INCONCLUSIVE: "unsure"}
    looks = look[GateVerdict(gate.verdict)]
    href = reverse("gate", args=[gate.pk])
    lead = str(gate.report.get("lead", ""))
    if decision_of(gate) is not None:
        text = f"An approver wants to override the {gate.verdict} verdict and needs a second one. {gate.headline}."
        title = f"Confirm the override for {gate.candidate.slug}?"
        return Need("decision", looks, "Override asked", title, text, href, "Confirm")
    passed = gate.verdict == GateVerdict.PASS
    title = f"Promote {gate.candidate.slug}?" if passed else f"Decide on {gate.candidate.slug}"
    word = f"Gate {'passed' if passed else 'failed' if looks == 'fail' else 'inconclusive'}"
    text = f"{gate.headline}. {lead if passed else lead.partition('. ')[0] + '.'}"
    return Need("decision", looks, word, title, text, href, "Decide" if passed else "Open", main=passed)


def _label_need(user: User) -> list[Need]:
    count = num_waiting(user)
    if not count:
        return []
    text = "A mix of random and suspicious episodes, blind. Your labels say how far the verifier can be believed."
    title = "Label an episode" if count == 1 else "Label episodes"
    words = f"{count} label{'' if count == 1 else 's'}"
    return [Need("labels", "live", words, title, text, reverse("review"), "Start", glyph="person")]


def _run_need(run: Run) -> Need:
    halted = run.state == RunState.HALTED
    title = f"{run.name or run} {'stopped itself' if halted else 'failed'} at step {run.step}"
    word = "Run halted" if halted else "Run failed"
    look = "halted" if halted else "fail"
    href = reverse("run", args=[run.pk])
    return Need("run", look, word, title, run.status_message, href, "See why", glyph=look)


def _count(number: int, word: str) -> str:
    if not number:
        return ""
    written = _NUMBERS[number] if number < len(_NUMBERS) else str(number)
    return f"{written} {word}{'' if number == 1 else 's'}"
