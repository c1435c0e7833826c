"""What repeats itself in a suite: near-copies within and across splits, shared answers, shared clusters. Pure."""

from collections import defaultdict
from collections.abc import Sequence

from apps.tasks.models import SplitName
from apps.tasks.reports.facts import TaskFacts
from apps.tasks.reports.minhash import Group, Hashes, jaccard, near_duplicates, shingles
from apps.tasks.reports.options import Finding, ReportOptions, Row, Severity

MAX_COMPARED = 200  # members of a split in one group that a task is compared with
_ORDER = {SplitName.TRAIN: 0, SplitName.DEV: 1, SplitName.HELDOUT: 2, SplitName.REGRESSION: 3}
_MANY_COPIES = 0.1  # share of a suite from which copies within splits are a problem


def find_copies(facts: Sequence[TaskFacts], options: ReportOptions) -> list[Finding]:
    """Near-duplicate prompts: within splits, between train and held-out, and between any other two splits."""
    sets = [shingles(fact.asked, options.shingle_characters) for fact in facts]
    groups = near_duplicates(sets, options.threshold, options.seed)
    within = [row for group in groups for row in _within(facts, sets, group, options.threshold)]
    across = [row for group in groups for row in _across(facts, sets, group, options.threshold)]
    split_of = {fact.id: fact.split for fact in facts}
    leaks = [row for row in across if {split_of[row.task], split_of[row.other]} == {"train", "heldout"}]
    leaked = {row.task for row in leaks}
    others = [row for row in across if row not in leaks]
    num_heldout = sum(fact.split == SplitName.HELDOUT for fact in facts)
    return [
        _leaks(leaks, len(leaked), num_heldout, options.threshold),
        _other_splits(others, sum(fact.split != SplitName.TRAIN for fact in facts)),
        _copies(within, len(facts), len({row.other for row in within})),
    ]


def find_shared(facts: Sequence[TaskFacts], options: ReportOptions) -> list[Finding]:
    """Held-out tasks whose answer, reference or cluster training shows too."""
    heldout = [fact for fact in facts if fact.split == SplitName.HELDOUT]
    train = [fact for fact in facts if fact.split == SplitName.TRAIN]
    answers = _first_by([(fact.answer, fact) for fact in train], options.min_answer_characters)
    references = _first_by([(fact.reference, fact) for fact in train], options.min_answer_characters)
    rows = []
    for fact in heldout:
        if (other := answers.get(fact.answer)) is not None:
            rows.append(Row(task=fact.id, other=other.id, note="same expected answer"))
        elif (other := references.get(fact.reference)) is not None:
            rows.append(Row(task=fact.id, other=other.id, note="same reference"))
    clusters = _first_by([(fact.cluster, fact) for fact in train], 1)
    shared = [
        Row(task=fact.id, other=clusters[fact.cluster].id, note=fact.cluster)
        for fact in heldout
        if fact.cluster in clusters
    ]
    comparable = sum(len(fact.answer) >= options.min_answer_characters for fact in heldout)
    return [_answers(rows, len(heldout), comparable), _clusters(shared, len(heldout), any(f.cluster for f in facts))]


def _within(facts: Sequence[TaskFacts], sets: Sequence[Hashes], group: Group, threshold: float) -> list[Row]:
    """Every later member of a split beside the first one, with their similarity."""
    first_of: dict[str, int] = {}
    rows = []
    for index in group.members:
        first = first_of.setdefault(facts[index].split, index)
        if first != index:
            value = jaccard(sets[first], sets[index])
            note = "" if value >= threshold else "alike through others of its group"
            rows.append(Row(task=facts[index].id, other=facts[first].id, value=round(value, 4), note=note))
    return rows


def _across(facts: Sequence[TaskFacts], sets: Sequence[Hashes], group: Group, threshold: float) -> list[Row]:
    """For each member the most alike one of every split before its own, where it reaches the threshold itself."""
    by_split: dict[str, list[int]] = defaultdict(list)
    for index in group.members:
        by_split[facts[index].split].append(index)
    rows = []
    for index in group.members:
        for split, members in sorted(by_split.items()):
            if _ORDER[SplitName(split)] >= _ORDER[SplitName(facts[index].split)]:
                continue
            value, nearest = max((jaccard(sets[index], sets[other]), -other) for other in members[:MAX_COMPARED])
            if value >= threshold:
                rows.append(Row(task=facts[index].id, other=facts[-nearest].id, value=round(value, 4)))
    return rows


def _first_by(pairs: Sequence[tuple[str, TaskFacts]], min_characters: int) -> dict[str, TaskFacts]:
    found: dict[str, TaskFacts] = {}
    for text, fact in pairs:
        if len(text) >= min_characters:
            found.setdefault(text, fact)
    return found


def _leaks(rows: list[Row], count: int, num_heldout: int, threshold: float) -> Finding:
    text = (
        f"{count} of {num_heldout} held-out prompts nearly copy a training prompt (Jaccard {threshold:g} or more)."
        if count
        else f"No held-out prompt is a near-copy of a training prompt (n = {num_heldout})."
    )
    return Finding(
        name="leaks", title="Held-out prompts that training shows", value_name="Jaccard", rows=rows, discloses=False,
        severity=Severity.PROBLEM if count else Severity.OK, count=count, total=num_heldout, text=text,
        advice="Move the training tasks they resemble out of train, or the held-out ones out of held-out, and import "
        "the suite as a new version: until then held-out success partly measures memory.",
    )  # fmt: skip


def _other_splits(rows: list[Row], total: int) -> Finding:
    count = len({row.task for row in rows})
    text = (
        f"{count} prompts of dev, held-out or regression are near-copies of one in another split."
        if count
        else "No near-copies between the other splits."
    )
    return Finding(
        name="cross_copies", title="Near-copies between other splits", value_name="Jaccard", rows=rows, total=total,
        severity=Severity.WARNING if count else Severity.OK, count=count, text=text, discloses=False,
        advice="A dev task like a held-out one lets the choice of a checkpoint peek at the gate: keep one of a pair.",
    )  # fmt: skip


def _copies(rows: list[Row], total: int, num_groups: int) -> Finding:
    count = len(rows)
    severity = Severity.OK if not count else Severity.PROBLEM if count > _MANY_COPIES * total else Severity.WARNING
    text = (
        f"{count} of {total} tasks repeat another one of their split almost word for word, in {num_groups} groups."
        if count
        else f"No task repeats another one of its split (n = {total})."
    )
    return Finding(
        name="copies", title="Near-copies within a split", value_name="Jaccard", rows=rows, severity=severity,
        count=count, total=total, text=text, discloses=False,
        advice="Keep one of each group, or give each group one cluster: otherwise intervals look surer than they are.",
    )  # fmt: skip


def _answers(rows: list[Row], total: int, comparable: int) -> Finding:
    count = len(rows)
    text = (
        f"{count} of {total} held-out tasks have the answer or the reference of a training task."
        if count
        else f"No held-out task has a training task's answer; {comparable} of {total} answers are long enough to tell."
    )
    return Finding(
        name="shared_answers", title="Answers that training shows", rows=rows, count=count, total=total, text=text,
        severity=Severity.WARNING if count else Severity.OK if comparable or not total else Severity.UNMEASURED,
        advice="Look at the pairs: where the question is the same in other words, one of the two has to go.",
    )  # fmt: skip


def _clusters(rows: list[Row], total: int, declared: bool) -> Finding:
    count, names = len(rows), len({row.note for row in rows})
    if not declared:
        text, severity = "No clusters are declared, so templates and sources cannot be told apart.", Severity.UNMEASURED
    elif count:
        text = f"{count} of {total} held-out tasks come from {names} clusters that training has too."
        severity = Severity.WARNING
    else:
        text, severity = f"Train and held-out share no cluster (n = {total}).", Severity.OK
    return Finding(
        name="shared_clusters", title="Clusters in train and in held-out", rows=rows, count=count, total=total,
        severity=severity, text=text, discloses=False,
        advice="Split by cluster, so that held-out asks for what training did not show; or say in the distribution "
        "that the same kinds of task are wanted.",
    )  # fmt: skip
