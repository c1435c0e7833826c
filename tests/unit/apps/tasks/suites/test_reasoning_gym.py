"""reasoning-gym as a suite: our own extraction, rewards only for what its scorer gives all, and a Python of its own."""

import os
import stat
from pathlib import Path

import pytest

from apps.tasks.content import definition_errors, prepare, task_errors
from apps.tasks.suites import reasoning_gym
from apps.tasks.suites.errors import SuiteError
from gpu_workers.contracts.enums import Split
from gpu_workers.sandboxes.local import LocalBackend
from gpu_workers.verifiers.gate import check_task
from gpu_workers.verifiers.reference import answer_episode
from gpu_workers.verifiers.registry import get_verifier

ROW = {
    "generator": "lcm", "index": 3, "question": "Find the LCM of 4 and 6", "answer": "12",
    "wrong": ["121", "12 or 0", "unknown"], "score": 1.0, "scores": [0.7, 0.3, 0.0],
}  # fmt: skip
INSTALLED = Path(os.environ.get("RATCHET_ENVIRONMENTS_DIR", "/nowhere"))


def fake_python(folder: Path, body: str) -> Path:
    """Stands for the environment's interpreter: a program that prints what a test wants to be read."""
    python = folder / "reasoning-gym" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{body}\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.mark.parametrize(
    ("answer", "passes"),
    [
        ("Answer: 12", True), ("4*3=12\n\nAnswer: 12 \n", True), ("12", False), ("Answer: 121", False),
        ("Answer: 12 or 13", False), ("Answer: 12\nAnswer: 13", False), ("Answer: 12\nI think.", False), ("", False),
        ("The Answer: 12", False), ("answer: 12", False), ("Answer:\n12", False),
    ],
)  # fmt: skip
async def test_one_line_holds_the_answer_and_nothing_else(answer, passes):
    task = reasoning_gym.task_of(Split.TRAIN, ROW)
    result = await get_verifier(task.verifier, LocalBackend()).verify(task, answer_episode(task, answer))
    assert (result.verdict == "pass", result.score) == (passes, float(passes))


async def test_the_task_passes_its_own_check():
    check = await check_task(reasoning_gym.task_of(Split.TRAIN, ROW), LocalBackend(), 3)
    assert check.ok, check.message


@pytest.mark.parametrize("changes", [{"score": 0.99}, {"scores": [0.0, 1.0, 0.0]}, {"answer": "1\n2"}, {"answer": " "}])
def test_a_generator_whose_scorer_accepts_more_than_one_text_is_refused(changes):
    with pytest.raises(SuiteError, match="off the list"):
        reasoning_gym.task_of(Split.TRAIN, {**ROW, **changes})


def test_without_the_environment_it_says_how_to_make_it(tmp_path):
    with pytest.raises(SuiteError, match="make environments"):
        reasoning_gym.build(environments=tmp_path)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo 'no such package' >&2; exit 3", "no such package"),
        ("echo '{'", "no JSON"),
        ("echo '[1]'", "list, not an object"),
        ("exit 1", "said nothing"),
    ],
)
def test_a_program_that_fails_is_quoted(tmp_path, body, message):
    with pytest.raises(SuiteError, match=message):
        reasoning_gym.build(environments=fake_python(tmp_path, body))


def test_secrets_of_the_control_plane_do_not_reach_the_program(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "hush")
    monkeypatch.setenv("DATABASE_URL", "postgres://u:p@h/d")
    seen = tmp_path / "seen"
    with pytest.raises(SuiteError):
        reasoning_gym.build(environments=fake_python(tmp_path, f"env > {seen}; exit 1"))
    assert "hush" not in seen.read_text() and "postgres" not in seen.read_text() and "PATH=" in seen.read_text()


@pytest.mark.skipif(
    not (INSTALLED / "reasoning-gym").exists(), reason="reasoning-gym is not installed: make test-environments"
)
async def test_the_package_gives_disjoint_splits_that_pass_their_checks():
    sizes = {Split.TRAIN: 6, Split.DEV: 2, Split.HELDOUT: 3, Split.REGRESSION: 1}
    definition, tasks = reasoning_gym.build(environments=INSTALLED, sizes=sizes)
    again = reasoning_gym.build(environments=INSTALLED, sizes=sizes)[1]
    prepared = prepare(tasks)
    assert [task.data for task in prepared] == [task.data for task in prepare(again)], "seeded: the same tasks"
    assert definition_errors(definition, prepared) == task_errors(prepared) == []
    assert {bundle.tags[0] for _, bundle in tasks} == set(reasoning_gym.GENERATORS)
    for _, bundle in tasks:
        check = await check_task(bundle, LocalBackend(), 2)
        assert check.ok, (bundle.key, check.message)
