"""The analysis on suites small enough to say beforehand what must be found."""

from typing import Any

import pytest

from apps.tasks.reports.attempts import SuiteAttempts, TaskAttempts
from apps.tasks.reports.building import build_draft, finish_body
from apps.tasks.reports.facts import TaskFacts, usual_answer, usual_tool
from apps.tasks.reports.options import Finding, ReportOptions, Severity, rate_bin
from apps.tasks.reports.probing import find_shortcuts, plan_probes
from gpu_workers.contracts.environment import EnvironmentContract, Limits
from gpu_workers.contracts.replays import ShortcutVerdict, StoredEpisode, StoredVerdict, TaskProbe

QUESTIONS = [
    "How many legs do three spiders and one beetle have together?",
    "Name the capital of the country whose flag shows a maple leaf.",
    "Sort these colours by wavelength: green, violet, red, yellow.",
    "A recipe for four asks for 300 g of flour; how much for seven?",
    "Which of these words is no palindrome: level, noon, river, civic?",
]


def fact(key: str, split: str = "train", **changes: Any) -> TaskFacts:
    values: dict[str, Any] = {
        "id": key, "key": key, "split": split, "cluster": "", "tags": (), "usable": True, "asked": key,
        "num_characters": 100, "answer": "", "reference": "", "final": "", "tools": (), "called": "",
        "contract": EnvironmentContract(),
    }  # fmt: skip
    return TaskFacts(**{**values, **changes})


def honest() -> list[TaskFacts]:
    return [
        fact(f"{split}{n}", split, asked=f"{question} ({split})" * 3)
        for split in ("train", "heldout")
        for n, question in enumerate(QUESTIONS)
        if (n % 2 == 0) == (split == "train")
    ]


def finding(facts: list[TaskFacts], name: str, attempts: SuiteAttempts | None = None, **options: Any) -> Finding:
    found = build_draft(facts, attempts or SuiteAttempts(), ReportOptions(**options)).finding(name)
    assert found is not None
    return found


def pairs(found: Finding) -> set[tuple[str, str]]:
    return {(row.task, row.other) for row in found.rows}


def test_an_honest_suite_has_no_copies_and_no_leaks() -> None:
    for name in ("leaks", "copies", "cross_copies"):
        found = finding(honest(), name)
        assert (found.severity, found.count, found.rows) == (Severity.OK, 0, []), name


def test_a_leak_names_the_pair_with_its_exact_similarity() -> None:
    facts = [*honest(), fact("leaked", "heldout", asked=f"{QUESTIONS[0]} (train)" * 3 + "!")]
    found = finding(facts, "leaks")
    assert (found.severity, found.count, found.total) == (Severity.PROBLEM, 1, 3)
    assert pairs(found) == {("leaked", "train0")}
    assert 0.9 < (found.rows[0].value or 0) < 1.0
    assert found.rows[0].note == "", "a row of a near-copy shows keys only"
    assert finding(facts, "leaks", threshold=1.0).count == 0


def test_copies_within_a_split_and_between_others_are_told_apart() -> None:
    text = "What is the shortest way from the station to the old harbour?"
    facts = [
        *honest(),
        fact("a", asked=text), fact("b", asked=text.upper()), fact("c", asked=f" {text}  "),
        fact("d", "dev", asked=QUESTIONS[3] * 2), fact("h", "heldout", asked=QUESTIONS[3] * 2),
    ]  # fmt: skip
    assert pairs(finding(facts, "copies")) == {("b", "a"), ("c", "a")}
    assert finding(facts, "copies").severity is Severity.PROBLEM  # 2 of 10
    assert pairs(finding(facts, "cross_copies")) == {("h", "d")}
    assert finding(facts, "leaks").count == 0


def test_a_held_out_task_is_compared_with_training_itself_not_through_a_chain() -> None:
    words = [f"w{n:03}" for n in range(60)]
    chain = [" ".join(words[start : start + 40]) for start in range(0, 20, 2)]
    facts = [fact("train", asked=chain[0]), *(fact(f"dev{n}", "dev", asked=t) for n, t in enumerate(chain[1:-1]))]
    facts.append(fact("held", "heldout", asked=chain[-1]))
    assert finding(facts, "cross_copies").count > 0
    assert finding(facts, "leaks").rows == [], "linked only through dev tasks"


def test_shared_answers_count_only_where_they_cannot_agree_by_chance() -> None:
    facts = [
        fact("t1", answer="the long and winding road"), fact("t2", answer="3"), fact("t3", reference="f(a=1, b='two')"),
        fact("h1", "heldout", answer="the long and winding road"), fact("h2", "heldout", answer="3"),
        fact("h3", "heldout", reference="f(a=1, b='two')"), fact("h4", "heldout", answer="quite another answer"),
    ]  # fmt: skip
    found = finding(facts, "shared_answers")
    assert pairs(found) == {("h1", "t1"), ("h3", "t3")}
    assert found.discloses
    assert "winding" not in repr(found.rows), "the answer itself is in no row"
    every = finding(facts, "shared_answers", min_answer_characters=1)
    assert pairs(every) == {("h1", "t1"), ("h2", "t2"), ("h3", "t3")}


def test_shared_clusters_and_none_declared() -> None:
    assert finding(honest(), "shared_clusters").severity is Severity.UNMEASURED
    facts = [fact("t", cluster="plus"), fact("h1", "heldout", cluster="plus"), fact("h2", "heldout", cluster="minus")]
    found = finding(facts, "shared_clusters")
    assert ([row.task for row in found.rows], found.severity) == (["h1"], Severity.WARNING)


def test_gaps_in_tags_lengths_and_size() -> None:
    facts = [
        fact("t", tags=("sum", "easy"), num_characters=100),
        fact("h", "heldout", tags=("sum", "hard"), num_characters=900),
    ]
    found = finding(facts, "tag_gaps")
    assert (found.severity, found.count, found.total) == (Severity.WARNING, 2, 3)
    assert {(row.task, row.note) for row in found.rows} == {("t", "easy"), ("h", "hard")}
    assert finding(facts, "length_gap").severity is Severity.WARNING
    assert finding(facts, "heldout_size").count == 1
    body = build_draft(facts, SuiteAttempts(), ReportOptions())
    assert body.tags["sum"] == {"train": 1, "heldout": 1}
    assert body.lengths["heldout"].bins == [0, 0, 0, 0, 1, 0, 0, 0]  # 801 to 1,600 characters
    assert body.lengths["train"].bins[0] == 1


def test_difficulty_is_measured_or_said_not_to_be() -> None:
    facts = [fact(f"h{n}", "heldout") for n in range(4)]
    assert finding(facts, "level").severity is Severity.UNMEASURED
    assert "Not measured" in finding(facts, "never_passed").text
    attempts = SuiteAttempts(
        "Prompt only",
        {"h0": TaskAttempts(4, 4, 4, 4), "h1": TaskAttempts(4, 0, 2, 0), "h2": TaskAttempts(3, 0, 2, 1)},
    )
    body = build_draft(facts, attempts, ReportOptions())
    measured = body.difficulty["heldout"]
    assert (measured.num_measured, measured.num_episodes, measured.num_passed) == (3, 8, 5)
    assert measured.bins == [1, 0, 1, 0, 0, 1]
    assert "62.5%" in finding(facts, "level", attempts).text
    never = finding(facts, "never_passed", attempts)
    assert ([(row.task, row.value) for row in never.rows], never.total) == ([("h1", 4.0)], 2)


@pytest.mark.parametrize(("rate", "expected"), [(0, 0), (0.01, 1), (0.25, 1), (0.26, 2), (0.75, 3), (0.99, 4), (1, 5)])
def test_bins_of_rates(rate: float, expected: int) -> None:
    assert rate_bin(rate) == expected


def test_the_usual_answer_and_tool_are_learnt_from_what_is_not_held_out() -> None:
    facts = [
        fact("t1", final="yes", tools=("a", "b"), called="b"), fact("t2", final="no", tools=("a", "b"), called="b"),
        fact("t3", final="yes", tools=("a",)),
        *(fact(f"h{n}", "heldout", final="secret", tools=("c",), called="c") for n in range(9)),
    ]  # fmt: skip
    assert (usual_answer(facts), usual_tool(facts)) == ("yes", "b")
    assert (usual_answer(facts[3:]), usual_tool(facts[3:])) == ("", "")


def test_probes_add_up() -> None:
    def probe(task: str, *passed: str, agreed: bool = True, error: str = "") -> TaskProbe:
        shortcuts = [
            ShortcutVerdict(
                policy=p, verdict="pass" if p in passed else "fail", score=float(p in passed), agreed=agreed
            )
            for p in ("empty", "refusal")
        ]
        stored = [StoredVerdict(episode_id="e", stored="pass 1", again=["pass 1", "pass 1" if agreed else "fail 0"])]
        return TaskProbe(task_id=task, shortcuts=shortcuts, stored=stored, error=error)

    attempts = SuiteAttempts("", {"t0": TaskAttempts(8, 0)})
    draft = build_draft([fact(f"t{n}") for n in range(60)], attempts, ReportOptions())
    probes = [probe("t0", "empty"), *(probe(f"t{n}") for n in range(1, 59)), probe("t59", agreed=False)]
    body = finish_body(draft, [*probes, TaskProbe(task_id="t9", error="no sandbox")], attempts)
    empty = body.finding("shortcut_empty")
    assert empty and (empty.count, empty.total, empty.severity) == (1, 60, Severity.WARNING)
    assert empty.rows[0].note == "policies passed 0 of 8"
    assert body.finding("shortcut_refusal").severity is Severity.OK  # type: ignore[union-attr]
    assert body.finding("shortcut_constant").severity is Severity.UNMEASURED  # type: ignore[union-attr]
    unstable = body.finding("unstable")
    assert unstable and (unstable.count, unstable.severity) == (3, Severity.PROBLEM)
    assert {row.task for row in unstable.rows} == {"t59"}
    assert body.finding("unprobed").count == 1  # type: ignore[union-attr]
    assert body.verdict is Severity.PROBLEM
    assert body.headline.startswith("Do not rely on this suite yet. ")
    assert body.findings[0].severity is Severity.PROBLEM


@pytest.mark.parametrize(
    ("policy", "passed", "severity"),
    [
        ("empty", 1, Severity.WARNING), ("empty", 3, Severity.PROBLEM), ("constant", 2, Severity.OK),
        ("constant", 20, Severity.WARNING), ("frequent_tool", 20, Severity.WARNING),
        ("frequent_tool", 26, Severity.PROBLEM),
    ],
)  # fmt: skip
def test_what_guessing_earns_is_less_of_a_problem_than_what_nothing_earns(
    policy: str, passed: int, severity: Severity
) -> None:
    verdicts = ["pass"] * passed + ["fail"] * (100 - passed)
    probes = [
        TaskProbe(task_id=str(n), shortcuts=[ShortcutVerdict(policy=policy, verdict=verdict)])
        for n, verdict in enumerate(verdicts)
    ]
    (found,) = [found for found in find_shortcuts(probes, SuiteAttempts()) if found.name == f"shortcut_{policy}"]
    assert (found.count, found.severity) == (passed, severity)


def test_stored_episodes_are_drawn_by_the_seed_and_bounded() -> None:
    facts = [*(fact(f"t{n}") for n in range(30)), fact("bad", usable=False)]
    episodes = {
        f.id: TaskAttempts(1, 1, stored=(StoredEpisode(episode_id=f.id, transcript="x", index=0),)) for f in facts
    }
    attempts = SuiteAttempts("", episodes)
    bundles = {f.id: f"objects/{f.id}" for f in facts}
    plan = plan_probes(facts, bundles, attempts, ReportOptions(max_replays=10))
    assert [item.task_id for item in plan] == [f"t{n}" for n in range(30)]
    drawn = {item.task_id for item in plan if item.stored}
    assert len(drawn) == 10
    assert plan == plan_probes(facts, bundles, attempts, ReportOptions(max_replays=10))
    other = plan_probes(facts, bundles, attempts, ReportOptions(max_replays=10, seed=1))
    assert {item.task_id for item in other if item.stored} != drawn


def test_contracts_are_told_apart_by_what_they_grant() -> None:
    wide = EnvironmentContract(limits=Limits(memory_bytes=2**30))
    facts = [
        fact("a", contract=EnvironmentContract(files={"secret-name.txt": "x"})),
        fact("b", contract=EnvironmentContract(files={"other.txt": "y"})),
        fact("c", contract=wide),
    ]  # fmt: skip
    body = build_draft(facts, SuiteAttempts(), ReportOptions())
    assert [(row.num_tasks, row.example) for row in body.contracts] == [(2, "a"), (1, "c")]
    assert body.contracts[1].contract_hash == wide.contract_hash
    topics = {topic: (granted, text) for topic, granted, text, _ in body.contracts[0].grants}
    assert topics["Files given"] == (True, "1 file")
    assert topics["Network of the agent"][0] is False
    assert "secret-name" not in repr(body.contracts)
