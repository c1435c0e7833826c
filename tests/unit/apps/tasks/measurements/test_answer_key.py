"""An older answer key measured against the present one, judged by the real verifier."""

import pytest
from django.core.management import CommandError, call_command

from apps.evaluations.verifier_errors import estimate_errors
from apps.tasks.measurements.models import VerifierMeasurement
from apps.tasks.measurements.selectors import outcomes_of
from apps.tasks.measurements.services import measure_answer_key
from apps.tasks.models import Suite
from apps.tasks.suites.errors import SuiteError
from gpu_workers.contracts.enums import Split, VerifierKind
from gpu_workers.contracts.tasks import Message, ToolSpec, VerifierSpec
from ratchet.problems import Problem
from tests.support.evaluations import committed
from tests.support.measurements import Plane, imported
from tests.unit.apps.tasks.conftest import make_task
from tests.unit.apps.tasks.suites.test_bfcl_corrections import write

TOOL = ToolSpec(name="f", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})


def call_task(key, accepted, split=Split.TRAIN):
    return make_task(
        key, f"question {key}", split, tools=[TOOL], terminal_call=True,
        verifier=VerifierSpec(kind=VerifierKind.TOOL_CALL, expected=[{"name": "f", "arguments": {"a": accepted}}]),
        reference=[Message(role="assistant", content=f"f(a={accepted[0]})")],
    )  # fmt: skip


@pytest.fixture
def releases(tmp_path, monkeypatch):
    old, new = tmp_path / "older", tmp_path / "newer"
    truth = {0: [1], 1: [2], 2: [3]}
    was = {0: [1], 1: [5], 2: [3, 4]}
    for folder, name, key, answers in (
        (old, "v3_simple", "simple", was),
        (new, "v4_simple_python", "simple_python", truth),
    ):
        rows = {f"{key}_{n}": [{"f": {"a": accepted}}] for n, accepted in answers.items()}
        write(folder, f"BFCL_{name}.json", rows, dict.fromkeys(rows, "?"))
    monkeypatch.setattr("apps.tasks.suites.bfcl_corrections.data_folder", lambda: new)
    return old


@pytest.fixture
def keyed(plane: Plane, project) -> Plane:
    tasks = [
        call_task("simple_python_0", [1]), call_task("simple_python_1", [2]),
        call_task("simple_python_2", [3], Split.HELDOUT), call_task("elsewhere", [1]),
    ]  # fmt: skip
    plane.suite = imported(project, tasks, slug="calls", verifier_kind=VerifierKind.TOOL_CALL)
    Suite.objects.filter(pk=plane.suite.pk).update(source="bfcl")
    plane.suite.refresh_from_db()
    return plane


def test_an_old_key_is_wrong_where_it_differs(keyed: Plane, releases):
    with committed():
        measurement = measure_answer_key(suite=keyed.suite, by=None, older=releases, label="release 1")
    keyed.work()
    measurement.refresh_from_db()
    assert (measurement.state, measurement.num_tasks, measurement.label) == ("ready", 3, "release 1")
    errors = estimate_errors(outcomes_of(measurement))
    # Task 1: 5 passes and is wrong, 2 fails and is right. Task 2: 4 passes and is wrong, 3 is right in both.
    assert (errors.false_pass.count, errors.false_pass.n) == (2, 2)
    assert (errors.false_fail.count, errors.false_fail.n) == (1, 3)
    assert (errors.tasks_misjudged.count, errors.tasks_misjudged.n) == (2, 3)
    (fact,) = measurement.facts
    assert (fact["category"], fact["num_tasks"], fact["num_corrected"]) == ("simple_python", 3, 2)


def test_what_has_no_older_key_is_refused(plane: Plane, keyed: Plane, releases, tmp_path):
    with pytest.raises(SuiteError):
        measure_answer_key(suite=keyed.suite, by=None, older=tmp_path / "nowhere", label="x")
    Suite.objects.update(source="jsonl")
    keyed.suite.refresh_from_db()
    with pytest.raises(Problem, match="bfcl"):
        measure_answer_key(suite=keyed.suite, by=None, older=releases, label="x")


def test_the_command_starts_both_kinds(keyed: Plane, releases, capsys):
    with committed():
        call_command("measure_verifier", "calls", older=releases, label="release 1")
    keyed.work()
    with committed():
        call_command("measure_verifier", "functions", per_task=1, num_inputs=10)
    keyed.work()
    assert set(VerifierMeasurement.objects.values_list("method", "state")) == {
        ("answer_key", "ready"), ("mutants", "ready"),
    }  # fmt: skip
    call_command("measure_verifier", "functions", per_task=1, num_inputs=10)
    assert "candidates on 2 tasks" in capsys.readouterr().out
    with pytest.raises(CommandError, match="project"):
        call_command("measure_verifier", "functions", project="nobody")
    with pytest.raises(CommandError, match="name its folder"):
        call_command("measure_verifier", "calls", older=releases / "no")
    with pytest.raises(CommandError, match="per_task"):
        call_command("measure_verifier", "functions", per_task=0)
