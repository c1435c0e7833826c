"""Environments built with verifiers and with OpenEnv, run unmodified by their installed frameworks.

`make test-environments` installs the frameworks and runs this; without them it is skipped.
"""

import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from apps.tasks.content import definition_errors, prepare, task_errors
from apps.tasks.suites import hosted
from apps.tasks.suites.declaration import convert
from apps.tasks.suites.errors import SuiteError
from gpu_workers.contracts.enums import Verdict
from gpu_workers.contracts.seams import FinishedEpisode
from gpu_workers.contracts.tasks import TaskBundle
from gpu_workers.environments.hosted import HostedToolEnvironment, HostedVerifier
from gpu_workers.environments.process import Hosts
from gpu_workers.sandboxes.local import LocalBackend
from gpu_workers.verifiers.gate import check_task
from gpu_workers.verifiers.runner import VerifierRunner

INSTALLED = Path(os.environ.get("RATCHET_ENVIRONMENTS_DIR", "/nowhere"))
PACKAGES = Path(__file__).parent / "packages"
COMMON = {
    "distribution": "A test's own tasks.",
    "failure_modes": [{"code": "WRONG_ANSWER", "meaning": "another answer"}],
    "splits": {"heldout": 0.34, "dev": 0.0, "regression": 0.0},
}
SHELF = {
    **COMMON, "slug": "shelf", "title": "Shelf",
    "environment": {"kind": "verifiers", "id": "shelf_prices", "limit": 3, "max_turns": 5},
    "reference": [
        {"call": "shelf_price", "arguments": {"item": "{first}"}},
        {"call": "shelf_price", "arguments": {"item": "{second}"}}, {"answer": "{answer}"},
    ],
    "known_bad": ["I guess {answer} EUR"],
}  # fmt: skip
LOCKER = {
    **COMMON, "slug": "locker", "title": "Locker",
    "environment": {
        "kind": "openenv", "id": "locker_env", "limit": 4, "max_turns": 7,
        "config": {"instruction": "Open the locker.", "seed": 3},
    },
    "reference": [{"answer": "Replaced below: the number depends on the seed."}],
    "known_bad": ["It is open."],
}  # fmt: skip


def needs(kind: str) -> pytest.MarkDecorator:
    missing = not (INSTALLED / kind / "bin" / "python").exists()
    return pytest.mark.skipif(missing, reason=f"{kind} is not installed: make test-environments")


@pytest.fixture(scope="module")
def environments() -> Iterator[Path]:
    """The installed frameworks with these tests' environments beside them, in a folder that the sandbox can enter."""
    folder = Path(tempfile.mkdtemp(prefix="ratchet-environments-"))
    shutil.copytree(PACKAGES, folder / "packages", ignore=shutil.ignore_patterns("__pycache__"))
    for kind in ("verifiers", "openenv"):
        if (INSTALLED / kind).exists():
            (folder / kind).symlink_to(INSTALLED / kind)
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def hosts(environments: Path) -> Iterator[Hosts]:
    found = Hosts(environments)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def use_them(environments: Path, hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_ENVIRONMENTS_DIR", str(environments))
    monkeypatch.setattr("gpu_workers.verifiers.registry.worker_hosts", lambda: hosts)


def build(declared: dict) -> list[TaskBundle]:
    definition, tasks = hosted.build(convert(declared, hosted.HostedDeclaration))
    prepared = prepare(tasks)
    assert definition_errors(definition, prepared) == task_errors(prepared) == []
    return [task for _, task in tasks]


async def judged(hosts: Hosts, task: TaskBundle, *texts: str):
    messages = [{"role": m.role, "content": m.content} for m in task.prompt]
    for text in texts[:-1]:
        messages += [{"role": "assistant", "content": text}, {"role": "tool", "content": ""}]
    messages.append({"role": "assistant", "content": texts[-1]})
    verifier = VerifierRunner(task.verifier, HostedVerifier(hosts), LocalBackend())
    return await verifier.verify(task, FinishedEpisode(answer=texts[-1], messages=messages))


def call(name: str, **arguments) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@needs("verifiers")
async def test_an_environment_of_verifiers_is_listed_checked_played_and_judged(hosts):
    tasks = build(SHELF)
    assert [task.prompt[-1].content.split()[3] for task in tasks] == ["lamp", "rope", "cup"]
    assert "Answer like: 12 EUR" in tasks[0].prompt[0].content and "shelf_price" in tasks[0].prompt[0].content
    assert [tool.name for tool in tasks[0].tools] == ["shelf_price"]
    assert tasks[0].hosted.framework.startswith("verifiers==")
    check = await check_task(tasks[0], LocalBackend(), 2, bad_repeats=1)
    assert check.ok, check.message
    environment = HostedToolEnvironment(hosts, tasks[0])
    await environment.reset()
    assert (await environment.step("shelf_price", {"item": "lamp"})).result == "30"
    assert (await environment.step("shelf_price", {"item": "boat"})).result == "no boat here"
    await environment.close()
    partial = await judged(hosts, tasks[0], call("shelf_price", item="lamp"), "31 EUR")
    assert (partial.verdict, partial.score) == (Verdict.FAIL, 0.25)
    assert partial.evidence["rewards"] == {"right": 0.0, "looked": 0.25}
    stopped = await judged(hosts, tasks[0], *[call("shelf_price", item="lamp")] * 6, "37 EUR")
    assert stopped.verdict == Verdict.FAIL, "the environment stops after five turns"


@needs("verifiers")
async def test_configuration_reaches_the_environment_and_is_part_of_the_task(hosts):
    config = {**SHELF, "environment": {**SHELF["environment"], "config": {"currency": "CHF"}, "limit": 1}}
    (task,) = build(config)
    assert "CHF" in task.prompt[-1].content and task.hosted.config == {"currency": "CHF"}
    wrong = {**SHELF, "environment": {**SHELF["environment"], "config": {"colour": 1}}}
    with pytest.raises(SuiteError, match="cannot be loaded"):
        build(wrong)
    with pytest.raises(SuiteError, match="not installed"):
        build({**SHELF, "environment": {**SHELF["environment"], "id": "no_such_environment"}})
    with pytest.raises(SuiteError, match="no field 'colour'"):
        build({**SHELF, "reference": [{"answer": "{colour}"}]})


@needs("verifiers")
async def test_other_code_than_at_import_gives_no_verdict(hosts, environments):
    task = build(SHELF)[0]
    source = environments / "packages" / "verifiers" / "shelf_prices" / "tools.py"
    text = source.read_text()
    source.write_text(text.replace("30", "31"))
    try:
        result = await judged(hosts, task, "37 EUR")
    finally:
        source.write_text(text)
    assert (result.verdict, result.score) == (Verdict.ERROR, None) and "import it again" in result.message


@needs("openenv")
async def test_an_environment_of_openenv_is_listed_checked_played_and_judged(hosts):
    tasks = build(LOCKER)
    assert [f"locker {seed}:" in task.prompt[-1].content for seed, task in enumerate(tasks, 3)] == [True] * 4
    task = tasks[0]
    assert "Open the locker." in task.prompt[0].content and "locker 3" in task.prompt[-1].content
    assert [tool.name for tool in task.tools] == ["step"] and "number" in task.tools[0].parameters["properties"]
    number = random.Random(3).randrange(16)
    environment = HostedToolEnvironment(hosts, task)
    await environment.reset()
    wrong = (number + 1) % 16
    seen = json.loads((await environment.step("step", {"number": wrong})).result)
    assert seen == {"hint": "lower" if wrong > number else "higher", "tries_left": 4}
    assert (await environment.step("step", {"number": 99})).result.startswith("error")
    opened = await environment.step("step", {"number": number})
    assert "open" in opened.result and "ended the episode" in opened.result
    await environment.close()
    right = await judged(hosts, task, call("step", number=wrong), call("step", number=number), "Open.")
    assert (right.verdict, right.score) == (Verdict.PASS, 1.0)
    lost = await judged(hosts, task, *[call("step", number=wrong)] * 5, "Open.")
    assert (lost.verdict, lost.score) == (Verdict.FAIL, 0.0)


@needs("openenv")
async def test_the_import_check_of_an_openenv_task(hosts):
    task = build(LOCKER)[1]
    assert not (await check_task(task, LocalBackend(), 1, bad_repeats=1)).ok, "its reference does nothing"
    turn = hosted.Turn(call="step", arguments={"number": random.Random(4).randrange(16)})
    solved = msgspec.structs.replace(task, reference=hosted._reference([turn], {}, 1))
    check = await check_task(solved, LocalBackend(), 2, bad_repeats=1)
    assert check.ok, check.message


@needs("openenv")
def test_unknown_configuration_is_refused():
    wrong = {**LOCKER, "environment": {**LOCKER["environment"], "config": {"colour": 1}}}
    with pytest.raises(SuiteError, match="colour"):
        build(wrong)
