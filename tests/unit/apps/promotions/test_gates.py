"""The gate's verdict: what passes, what blocks and why, and how often it errs on null data."""

from dataclasses import replace

import numpy as np
import pytest

from apps.evaluations.statistics import look_alpha
from apps.promotions.evidence import Attempt, Evidence, VerifierQuality
from apps.promotions.gates import judge
from apps.promotions.report import MetricRule, Rules, Status

REQUIRED = ("tamper", "invalid_tool_calls", "latency_p95", "tokens")
ALPHA = look_alpha(0.05, 1)


def rules(**changes) -> Rules:
    return Rules(alpha=ALPHA, metrics={name: MetricRule(required=True) for name in REQUIRED}, **changes)


def arm(rng, num_tasks: int, *, success: float, invalid=0.02, tamper=0.0, pace=1.0, tokens=200) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(
            task=str(task),
            success=bool(rng.random() < success),
            invalid_call=bool(rng.random() < invalid),
            tamper=bool(rng.random() < tamper),
            seconds=float(pace * rng.uniform(0.9, 1.1)),
            tokens=int(tokens * rng.uniform(0.9, 1.1)),
            turns=2,
        )
        for task in range(num_tasks)
    )


def evidence(num_tasks=240, candidate=None, incumbent=None, seed=0, **more) -> Evidence:
    rng = np.random.default_rng(seed)
    return Evidence(
        tasks={str(task): f"c{task // 2}" for task in range(num_tasks)},
        samples=1,
        incumbent=arm(rng, num_tasks, **{"success": 0.4, **(incumbent or {})}),
        candidate=arm(rng, num_tasks, **{"success": 0.7, **(candidate or {})}),
        **more,
    )


def tile(report, name):
    return next(t for t in report.tiles if t.name == name)


def test_a_better_candidate_passes_and_the_words_say_so():
    report = judge(evidence(), rules())
    assert report.verdict is Status.PASS
    assert report.headline == "Better on held-out tasks, and nothing else got worse"
    success = tile(report, "success")
    assert success.low > 0 and success.candidate > success.incumbent
    assert success.estimate == pytest.approx(success.candidate - success.incumbent)
    assert tile(report, "unsafe_actions").verdict is Status.NOT_MEASURED
    assert "Not measured: unsafe actions and verifier disagreement." in report.lead
    assert report.num_better - report.num_worse == pytest.approx(success.estimate / 100 * 240)


@pytest.mark.parametrize(
    "candidate, name, words",
    [
        ({"tamper": 0.3}, "tamper", "Blocked: reward hacking got worse: lower bound"),
        ({"invalid": 0.4}, "invalid_tool_calls", "Blocked: invalid tool calls got worse: lower bound"),
        ({"pace": 2.0}, "latency_p95", "Blocked: latency p95 got worse: lower bound"),
        ({"tokens": 400}, "tokens", "Blocked: cost per attempt (tokens) got worse: lower bound"),
    ],
)
def test_each_guardrail_alone_fails_the_gate(candidate, name, words):
    report = judge(evidence(candidate=candidate), rules())
    assert report.verdict is Status.FAIL
    assert report.headline.startswith(words)
    assert [t.name for t in report.tiles if t.verdict is Status.FAIL] == [name] or name == "latency_p95"
    optional = Rules(alpha=ALPHA, metrics={})
    assert judge(evidence(candidate=candidate), optional).verdict is Status.PASS


def test_a_wide_guardrail_blocks_and_says_how_many_tasks_would_decide():
    report = judge(evidence(num_tasks=60, candidate={"success": 0.95}), rules())
    assert report.verdict is Status.INCONCLUSIVE
    tamper = tile(report, "tamper")
    assert tamper.verdict is Status.INCONCLUSIVE and tamper.estimate == 0
    assert tamper.high == pytest.approx(100 * (1 - ALPHA ** (1 / 60)))
    assert f"reward hacking upper bound +{tamper.high:.1f} pp > margin 5.0 pp" in report.lead.lower()
    enough = 60 + tamper.more_tasks
    assert 1 - ALPHA ** (1 / enough) <= 0.05 < 1 - ALPHA ** (1 / (enough - 1))


def test_worse_and_equal_candidates():
    worse = judge(evidence(candidate={"success": 0.15}), rules())
    assert worse.verdict is Status.FAIL
    assert worse.headline.startswith("Worse on held-out tasks: at most −")
    equal = judge(evidence(candidate={"success": 0.42}), rules())
    assert equal.verdict is Status.INCONCLUSIVE
    assert "would decide" in equal.headline
    small = judge(evidence(candidate={"success": 0.45}), rules(min_effect=0.3))
    assert small.verdict is Status.FAIL and small.headline.startswith("The gain is too small")


def test_missing_attempts_block():
    whole = evidence()
    few = judge(replace(whole, candidate=whole.candidate[:-4]), rules())
    assert few.verdict is Status.PASS and few.num_missing_candidate == 4
    assert few.worst_case_low < tile(few, "success").low
    many = judge(replace(whole, candidate=whole.candidate[:-20]), rules())
    assert many.verdict is Status.INCONCLUSIVE
    assert many.headline.startswith("Blocked: 0 of 240 attempts are missing for the incumbent and 20")
    assert any("differ" in block for block in many.blocks)


def test_a_verdict_that_missing_attempts_could_flip_is_not_given():
    close = evidence(candidate={"success": 0.52}, seed=6)
    assert judge(close, rules()).verdict is Status.PASS
    gone = [a for a in close.candidate if not a.success][:8]
    flipped = judge(
        replace(close, candidate=tuple(a for a in close.candidate if a not in gone)), rules(max_missing_share=0.5)
    )
    assert flipped.verdict is Status.INCONCLUSIVE


def test_one_large_cluster_blocks_what_would_pass():
    whole = evidence()
    lopsided = {task: "big" if int(task) < 100 else f"c{task}" for task in whole.tasks}
    report = judge(replace(whole, tasks=lopsided), rules())
    assert report.verdict is Status.INCONCLUSIVE
    assert "one cluster holds 42 %" in report.headline


def test_four_wins_of_sixty_four_are_too_few():
    base = tuple(Attempt(task=str(i), success=False) for i in range(64))
    better = tuple(replace(a, success=int(a.task) < 4) for a in base)
    report = judge(Evidence({str(i): str(i) for i in range(64)}, 1, base, better), Rules(alpha=ALPHA))
    assert tile(report, "success").low > 0
    assert report.verdict is Status.INCONCLUSIVE
    assert "too few differing tasks" in tile(report, "success").words


def test_a_required_metric_that_is_not_measured_blocks():
    demanding = Rules(alpha=ALPHA, metrics={"unsafe_actions": MetricRule(required=True)})
    report = judge(evidence(), demanding)
    assert report.verdict is Status.INCONCLUSIVE
    assert report.headline == "Blocked: unsafe actions: required, but not measured"


def test_an_uncalibrated_verifier_blocks_only_when_required():
    unsure = evidence(verifier=VerifierQuality(12, 0.05, 0.0, 0.22))
    assert judge(unsure, rules()).verdict is Status.PASS
    asked = Rules(alpha=ALPHA, metrics={"verifier": MetricRule(required=True, margin=0.1)})
    report = judge(unsure, asked)
    assert report.verdict is Status.INCONCLUSIVE and "verifier disagreement upper bound 22.0 %" in report.headline
    assert judge(evidence(verifier=VerifierQuality(200, 0.02, 0.01, 0.05)), asked).verdict is Status.PASS


def test_a_ceiling_binds_even_when_the_difference_does_not():
    hacked = evidence(candidate={"tamper": 0.2}, incumbent={"tamper": 0.2})
    free = Rules(alpha=ALPHA, metrics={"tamper": MetricRule(required=True, margin=0.2)})
    assert judge(hacked, free).verdict is Status.PASS
    capped = Rules(alpha=ALPHA, metrics={"tamper": MetricRule(required=True, margin=0.2, ceiling=0.05)})
    assert judge(hacked, capped).verdict is Status.FAIL


def test_no_evidence_is_not_a_verdict():
    report = judge(Evidence({"a": "c"}, 1, (), ()), rules())
    assert report.verdict is Status.INCONCLUSIVE
    assert report.headline == "Blocked: no task has a verdict in both arms"


def test_the_gate_rarely_passes_equal_policies():
    """Type-I error of the whole gate at .0304, with an effect common to a cluster; then its power."""
    passed = {0.0: 0, 0.25: 0}
    light = Rules(alpha=ALPHA, metrics={name: MetricRule(required=True) for name in ("tamper", "invalid_tool_calls")})
    for gain in passed:
        for repeat in range(150):
            rng = np.random.default_rng(repeat)
            tasks = {str(task): f"c{task // 4}" for task in range(120)}
            shift = np.repeat(rng.normal(0, 0.1, 30), 4)
            arms = []
            for chance in (0.4 - shift, 0.4 + gain + shift):
                wins = rng.random(120) < np.clip(chance, 0, 1)
                arms.append(tuple(Attempt(str(i), bool(wins[i]), turns=1) for i in range(120)))
            passed[gain] += judge(Evidence(tasks, 1, *arms), light).verdict is Status.PASS
    assert passed[0.0] / 150 < 0.07
    assert passed[0.25] / 150 > 0.9
