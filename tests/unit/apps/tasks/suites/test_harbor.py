"""Harbor folders: what comes in as it is, what is changed and said, what is refused with the reason."""

import json

import pytest

from apps.tasks.content import definition_errors, prepare, task_errors
from apps.tasks.suites.declaration import Declaration, Splits, convert
from apps.tasks.suites.errors import SuiteError
from apps.tasks.suites.harbor import build
from gpu_workers.contracts.enums import ReasonCode, Split, Verdict
from gpu_workers.contracts.seams import FinishedEpisode
from gpu_workers.rollout.environment import ToolEnvironment
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.sandboxes.command import find_bwrap
from gpu_workers.verifiers.gate import check_task
from gpu_workers.verifiers.registry import get_verifier
from tests.unit.apps.tasks.suites.harbor_folders import DOCKERFILE, TOML, folder

DECLARED = {
    "slug": "adding", "title": "Adding", "distribution": "Sums in files.",
    "failure_modes": [{"code": "WRONG_ANSWER", "meaning": "another sum"}],
}  # fmt: skip


def declare(**changes) -> Declaration:
    return convert({**DECLARED, **changes}, Declaration)


def task_of(**changes):
    (_, tasks), _ = build(declare(), folder(**changes))
    return tasks[0][1]


def refusal(**changes) -> str:
    with pytest.raises(SuiteError) as refused:
        build(declare(), folder(**changes))
    return str(refused.value)


@pytest.fixture
def backend():
    find_bwrap()
    return BubblewrapBackend()


async def test_a_folder_comes_in_as_it_is_and_passes_its_check(backend):
    (definition, tasks), _ = build(declare(), {**folder(), **folder("more"), "README.md": b"not a task"})
    prepared = prepare(tasks)
    assert definition_errors(definition, prepared) == task_errors(prepared) == []
    assert sorted(split for split, _ in tasks) == [Split.HELDOUT, Split.TRAIN]
    task = next(task for _, task in tasks if task.key == "add-up")
    assert "numbers.txt" in task.prompt[-1].content and "/app" in task.prompt[0].content
    assert task.contract.files == {"data/numbers.txt": "3\n4\n5\n", "words.txt": "none\n"}
    assert not task.contract.network and task.contract.limits.memory_bytes == 512 * 2**20
    check = await check_task(task, backend, 3, bad_repeats=1)
    assert check.ok, check.message


def test_what_is_changed_is_said(backend):
    _, notes = build(declare(), {**folder(), **folder("more", tests__test_dot_sh="wget x | sh\n")})
    said = {note.path: note.message for note in notes}
    assert "public" in said["tasks add-up, more: environment.network_mode"]
    assert "imported as denied" in said["tasks add-up, more: environment.network_mode"]
    assert "separate" in said["tasks add-up, more: verifier.environment_mode"]
    assert said["tasks add-up, more: environment.storage_mb"] == "is cut to 512 MiB"
    assert "wget" in said["task more: tests/test.sh"]
    explicit = TOML + '\nnetwork_mode = "no-network"\n'
    explicit = explicit.replace("[verifier]", '[verifier]\nenvironment_mode = "separate"')
    _, notes = build(declare(), folder(task_dot_toml=explicit))
    assert not any("network" in note.path or "mode" in note.path for note in notes)


async def test_the_policy_meets_the_files_at_their_place_and_is_judged_apart(backend):
    task = task_of()
    environment = ToolEnvironment(backend, task.contract, task.tools)
    await environment.reset()
    try:
        assert (await environment.step("shell", {"command": "cat /app/data/numbers.txt; pwd"})).result[:5] == "3\n4\n5"
        assert not (await environment.step("shell", {"command": "cat /tests/test.sh"})).ok
        assert (await environment.step("shell", {"command": "echo 12 > /app/sum.txt; echo $GREETING"})).ok
        files = await environment.state()
    finally:
        await environment.close()
    result = await get_verifier(task.verifier, backend).verify(task, FinishedEpisode("Done.", [], files))
    assert (result.verdict, result.score) == (Verdict.PASS, 1.0), result.message


REWARDS = {
    "echo 0.5 > /logs/verifier/reward.txt": (Verdict.FAIL, 0.5, ReasonCode.WRONG_ANSWER),
    "echo '{\"reward\": 1}' > /logs/verifier/reward.json": (Verdict.PASS, 1.0, ReasonCode.OK),
    "echo '{\"tests\": 1.0}' > /logs/verifier/reward.json": (Verdict.PASS, 1.0, ReasonCode.OK),
    "echo 1 > /logs/verifier/reward.txt; exit 3": (Verdict.PASS, 1.0, ReasonCode.OK),
}
UNSOUND = (
    "true", "exit 1", "echo nan > /logs/verifier/reward.txt", "echo 1.5 > /logs/verifier/reward.txt",
    "echo yes > /logs/verifier/reward.txt", "ln -s /etc/hostname /logs/verifier/reward.txt",
    "mkfifo /logs/verifier/reward.txt", "mkdir /logs/verifier/reward.txt", "echo '{' > /logs/verifier/reward.json",
    'echo \'{"a": 1, "b": 1}\' > /logs/verifier/reward.json', "echo true > /logs/verifier/reward.json",
    "kill -9 $$",
)  # fmt: skip


@pytest.mark.parametrize("script", REWARDS)
async def test_rewards(backend, script):
    task = task_of(tests__test_dot_sh=f"#!/bin/bash\n{script}\n")
    result = await get_verifier(task.verifier, backend).verify(task, FinishedEpisode("x", [], {}))
    assert (result.verdict, result.score, result.reason_code) == REWARDS[script], result.message


@pytest.mark.parametrize("script", UNSOUND)
async def test_a_script_without_a_sound_reward_gives_no_verdict(backend, script):
    task = task_of(tests__test_dot_sh=f"#!/bin/bash\n{script}\n")
    result = await get_verifier(task.verifier, backend).verify(task, FinishedEpisode("x", [], {}))
    assert (result.verdict, result.score) == (Verdict.ERROR, None), result.message


async def test_a_policy_that_breaks_the_script_has_failed_and_a_script_that_hangs_has_not(backend):
    toml = TOML.replace("timeout_sec = 30.0", "timeout_sec = 3.0")
    script = "bash /app/run.sh 2>/dev/null\necho 1 > /logs/verifier/reward.txt\n"
    task = task_of(task_dot_toml=toml, tests__test_dot_sh=script)
    verifier = get_verifier(task.verifier, backend)
    hung = await verifier.verify(task, FinishedEpisode("x", [], {"run.sh": b"sleep 60"}))
    assert (hung.verdict, hung.reason_code) == (Verdict.FAIL, ReasonCode.AGENT_TIMEOUT), hung.message
    task = task_of(task_dot_toml=toml, tests__test_dot_sh="sleep 60\n")
    result = await get_verifier(task.verifier, backend).verify(task, FinishedEpisode("x", [], {}))
    assert (result.verdict, result.reason_code) == (Verdict.ERROR, ReasonCode.VERIFIER_TIMEOUT)


async def test_nothing_of_the_policy_runs_on_after_the_script(backend):
    daemon = b"#!/bin/bash\nsetsid bash -c 'sleep 0.3; echo 1 > /logs/verifier/reward.txt' >/dev/null 2>&1 &\n"
    task = task_of(tests__test_dot_sh="/app/run.sh; echo 0 > /logs/verifier/reward.txt\n")
    result = await get_verifier(task.verifier, backend).verify(task, FinishedEpisode("x", [], {"run.sh": daemon}))
    assert (result.verdict, result.score) == (Verdict.FAIL, 0.0)


def test_files_that_the_image_writes_come_in_their_order():
    added = 'RUN mkdir -p /app out && printf "7\\n" > data/numbers.txt\nRUN echo 8 >> data/numbers.txt\n'
    added += "COPY words.txt out/\n"
    task = task_of(environment__Dockerfile=DOCKERFILE + added)
    assert task.contract.files["data/numbers.txt"] == "7\n8\n"
    assert task.contract.files["out/words.txt"] == "none\n" and task.contract.files["out/.keep"] == ""
    assert ".keep" not in task.contract.files


def test_a_script_that_wants_pytest_gets_it_by_a_mount_that_no_policy_sees():
    task = task_of(tests__test_dot_sh="uvx -w pytest==8.4.1 pytest /tests\n")
    assert task.contract.visible_mounts() == []
    assert [mount.source for mount in task.contract.for_verifier().visible_mounts()] == ["test-tools"]
    assert task.verifier.config["script"] in task.verifier.files and task.verifier.files["test.sh"].startswith("uvx")
    assert task_of().contract.mounts == [] and "script" not in task_of().verifier.config


async def test_a_task_whose_reference_fails_is_found(backend):
    check = await check_task(task_of(solution__solve_dot_sh="echo 13 > /app/sum.txt\n"), backend, 2, bad_repeats=1)
    assert (check.ok, check.reason_code) == (False, "TASK_INVALID") and "reference should pass" in check.message
    check = await check_task(task_of(solution__solve_dot_sh=None), backend, 2, bad_repeats=1)
    assert not check.ok and "no assistant turn" in check.message


def test_a_large_solution_is_written_in_pieces():
    task = task_of(solution__add_dot_py="# " + "x" * 40_000)
    calls = [json.loads(m.content[11:-12]) for m in task.reference if m.content.startswith("<tool_call>")]
    assert max(len(call["arguments"]["command"]) for call in calls) < 32_000
    assert sum("base64 -d" in call["arguments"]["command"] for call in calls) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"instruction_dot_md": None}, "instruction.md is missing"),
        ({"instruction_dot_md": " \n"}, "instruction.md is empty"),
        ({"tests__test_dot_sh": None}, "tests/test.sh is missing"),
        ({"environment__Dockerfile": None}, "an image that this machine does not have"),
        ({"environment__Dockerfile": "WORKDIR /app\n"}, "no base image"),
        (
            {"environment__Dockerfile": DOCKERFILE + "RUN apt-get install -y vim\n"},
            "line 7: RUN apt-get install -y vim: vim would",
        ),
        ({"environment__Dockerfile": "FROM a AS b\nFROM c\n"}, "build in stages"),
        ({"environment__Dockerfile": "FROM a\nCOPY --from=x a b\n"}, "--from=x"),
        ({"environment__Dockerfile": "FROM a\nCOPY <<EOF /app/x\nEOF\n"}, "here-document"),
        ({"environment__Dockerfile": "FROM a\nADD https://e.org/x /app/\n"}, "fetches"),
        ({"environment__Dockerfile": "FROM a\nWORKDIR $HOME\n"}, "variable of the build"),
        ({"environment__Dockerfile": DOCKERFILE + "COPY words.txt /etc/words\n"}, "outside the working folder"),
        ({"environment__Dockerfile": DOCKERFILE + "RUN touch /etc/x\n"}, "RUN writes /etc/x, outside the working"),
        ({"tests__test_dot_sh": "pip install numpy\n"}, "tests/test.sh line 1 installs numpy"),
        ({"environment__Dockerfile": DOCKERFILE + "COPY nothing /app/x\n"}, "nothing of that name"),
        ({"environment__Dockerfile": DOCKERFILE + "COPY ../solution /app/x\n"}, "only plain names"),
        ({"environment__Dockerfile": DOCKERFILE.replace("/app", "/usr")}, "would replace files of the sandbox"),
        ({"environment__docker-compose_dot_yaml": "services: {}"}, "several containers"),
        ({"environment__words_dot_txt": b"\xff\xfe\x00"}, "binary files cannot be imported"),
        ({"tests__data_dot_bin": b"a\0b"}, "binary files cannot be imported"),
        ({"task_dot_toml": b"\xff"}, "task.toml is no UTF-8"),
        ({"task_dot_toml": "version ="}, "is no TOML"),
        ({"task_dot_toml": TOML + "\n[agent]\ntimeout_sec = 1\n"}, "is no TOML"),
        ({"task_dot_toml": "[metadata]\n"}, "states no version"),
        ({"task_dot_toml": 'version = "9"\n'}, "version '9' is unknown"),
        ({"task_dot_toml": TOML.replace("60.0", '"long"')}, "agent.timeout_sec"),
        ({"task_dot_toml": TOML.replace("60.0", "-1.0")}, "must be positive"),
        ({"task_dot_toml": TOML.replace("60.0", "nan")}, "must be positive"),
        ({"task_dot_toml": TOML.replace('"512M"', '"lots"')}, "is no size"),
        ({"task_dot_toml": TOML + "gpus = 1\n"}, "environment.gpus"),
        ({"task_dot_toml": TOML + 'os = "windows"\n'}, "only Linux"),
        ({"task_dot_toml": TOML + '[environment.env]\nKEY = "${KEY}"\n'}, "variables of the host"),
        ({"task_dot_toml": TOML + '[[steps]]\nname = "a"\n'}, "several steps"),
        ({"task_dot_toml": TOML + '[environment.healthcheck]\ncommand = "true"\n'}, "service"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_reason(changes, message):
    assert message in refusal(**changes)


def test_what_is_left_out_is_said_and_the_rest_comes_in():
    built = "FROM x\nRUN make\n"
    files = {
        **folder(),
        **folder("more"),
        **folder("built", environment__Dockerfile=built),
        **folder("no", tests__test_dot_sh=None),
    }
    (_, tasks), notes = build(declare(), files)
    assert [task.key for _, task in tasks] == ["add-up", "more"]
    left_out = {note.path: note.message for note in notes if note.message.startswith("left out")}
    assert "RUN make" in left_out["task built"] and "tests/test.sh is missing" in left_out["task no"]
    assert notes[0].message.startswith("left out") and notes[1].message.startswith("left out")


def test_two_folders_of_one_name_and_none_at_all_are_refused():
    twice = {f"a/{path}": data for path, data in folder().items()} | {
        f"b/{path}": data for path, data in folder().items()
    }
    with pytest.raises(SuiteError, match="two folders"):
        build(declare(), twice)
    with pytest.raises(SuiteError, match="no folder with a task"):
        build(declare(), {"README.md": b"x"})


def test_a_fixture_inside_a_task_is_no_task():
    files = {**folder(), **folder("more"), "add-up/environment/data/task.toml": b"version = 1"}
    (_, tasks), _ = build(declare(), files)
    assert [task.key for _, task in tasks] == ["add-up", "more"]


def test_splits_are_drawn_or_named():
    files = {path: data for n in range(40) for path, data in folder(f"t{n:02d}").items()}
    (_, tasks), _ = build(declare(splits={"heldout": 0.5, "dev": 0.25, "regression": 0.0}), files)
    counts = {split: sum(s is split for s, _ in tasks) for split in Split}
    assert counts == {Split.TRAIN: 10, Split.DEV: 10, Split.HELDOUT: 20, Split.REGRESSION: 0}
    named = declare(splits={"tasks": {"t00": "dev", "t01": "heldout"}})
    (_, tasks), _ = build(named, files)
    split_of = {task.key: split for split, task in tasks}
    assert (split_of["t00"], split_of["t01"]) == (Split.DEV, Split.HELDOUT)
    with pytest.raises(SuiteError, match="no such task"):
        build(declare(splits={"tasks": {"t99": "dev"}}), files)
    assert Splits().draw(["only"]) == {"only": Split.HELDOUT}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"splits": {"heldout": 0.0}}, "splits"),
        ({"splits": {"heldout": 0.8, "dev": 0.8}}, "splits"),
        ({"splits": {"heldout": float("nan")}}, "splits"),
        ({"failure_modes": [{"code": "BAD", "meaning": "x"}]}, "failure_modes"),
        ({"colour": "red"}, "unknown field"),
        ({"slug": 3}, "slug"),
    ],
)
def test_a_declaration_is_read_strictly(changes, field):
    with pytest.raises(SuiteError) as refused:
        declare(**changes)
    assert field in str(refused.value)
