"""Suites of Harbor / terminal-bench task folders: task.toml, instruction.md, environment/, tests/test.sh, solution/.

A task comes in as it is where its image is a base image with files copied or written: the sandbox's own system stands
for the base. What a container engine would have to build is left out, and the suite's notes say which task and why.
"""

import base64
import json
import posixpath
from dataclasses import dataclass

from apps.tasks.suites.archive import text_of
from apps.tasks.suites.declaration import Declaration
from apps.tasks.suites.definition import Suite, SuiteTask
from apps.tasks.suites.dockerfile import NotRunnable, Recipe, read_dockerfile
from apps.tasks.suites.errors import SuiteError, SuiteProblem
from apps.tasks.suites.harbor_config import ConfigProblem, HarborConfig, read_config
from apps.tasks.suites.harbor_files import Files, placed_files
from apps.tasks.suites.harbor_script import MOUNT, START, STARTER, needs_tools
from gpu_workers.contracts.contract_rules import ContractError, check_contract_fields
from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.contracts.environment import WORKSPACE, EnvironmentContract
from gpu_workers.contracts.tasks import Message, TaskBundle, ToolSpec, VerifierSpec

MAX_TURNS = 30
MAX_NOTES = 500
PIECE = 12_000  # bytes of a file that one call of the reference writes
SOLUTION = ".solution"  # below the workspace while the reference runs
FETCHING = ("wget", "npm ", "git clone", "cargo ", "conda ")  # beside the installers that test tools stand in for
REFUSALS = (ConfigProblem, NotRunnable, ContractError)
BUILT = ("docker-compose.yaml", "docker-compose.yml", "singularity-compose.yaml")
SYSTEM = """Solve the task in a Linux shell without network. Your files are in {workdir}.
One call a turn, nothing else in it: <tool_call>{{"name": "shell", "arguments": {{"command": "ls"}}}}</tool_call>
Tools: shell(command), read_file(path), write_file(path, content). When you are done, answer with a short text."""
TOOLS = [
    ToolSpec(name="shell", description="Runs a command in the working folder."),
    ToolSpec(name="read_file", description="Reads a file below the working folder."),
    ToolSpec(name="write_file", description="Writes a file below the working folder."),
]


@dataclass(frozen=True)
class Note:
    """What the import changed in a task, or why it left it out."""

    path: str
    message: str


def build(declared: Declaration, files: Files) -> tuple[Suite, list[Note]]:
    """Definition, tasks and notes. Raises SuiteError where no task can be taken."""
    notes: list[Note] = []
    tasks: list[TaskBundle] = []
    folders = task_folders(files)
    for key, content in folders.items():
        try:
            task, changes = read_task(key, content, declared.licence)
        except REFUSALS as error:
            notes.append(Note(f"task {key}", f"left out: {error}"))
        except SuiteError as error:
            notes += [Note(f"task {key}", f"left out: {problem.field} {problem.message}") for problem in error.errors]
        else:
            tasks.append(task)
            notes += [Note(f"task {key}: {where}", what) for where, what in changes]
    if not tasks:
        problems = [SuiteProblem(0, note.path, note.message) for note in notes]
        raise SuiteError(problems or [SuiteProblem(0, "", "holds no folder with a task.toml")])
    split_of = declared.splits.draw([task.key for task in tasks])
    if unknown := sorted(set(declared.splits.tasks) - set(split_of)):
        raise SuiteError.single("splits.tasks", f"{', '.join(unknown[:5])}: no such task")
    placed: list[SuiteTask] = [(split_of[task.key], task) for task in tasks]
    return (declared.define(VerifierKind.SCRIPT), placed), shorten(notes)


def shorten(notes: list[Note]) -> list[Note]:
    """Equal notes of many tasks as one; tasks that were left out first."""
    by_text: dict[tuple[str, str], list[str]] = {}
    for note in notes:
        key, _, where = note.path.removeprefix("task ").partition(": ")
        by_text.setdefault((where, note.message), []).append(key)
    found = []
    for (where, message), keys in by_text.items():
        named = ", ".join(keys[:5]) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
        tasks = f"task {named}" if len(keys) == 1 else f"tasks {named}"
        found.append(Note(f"{tasks}: {where}" if where else tasks, message))
    found.sort(key=lambda note: not note.message.startswith("left out"))
    return found[:MAX_NOTES]


def task_folders(files: Files) -> dict[str, dict[str, bytes]]:
    """Every folder that has a task.toml, by a short key, with its files. Raises SuiteError for two of one name."""
    roots = sorted(posixpath.dirname(path) for path in files if posixpath.basename(path) == "task.toml")
    found: dict[str, dict[str, bytes]] = {}
    for root in roots:
        if any(root.startswith(f"{other}/") or (not other and root) for other in roots if other != root):
            continue  # a fixture of a task, not a task
        key = posixpath.basename(root) or "task"
        if key in found:
            raise SuiteError.single(f"task {key}", "two folders have this name")
        prefix = f"{root}/" if root else ""
        found[key] = {path[len(prefix) :]: data for path, data in files.items() if path.startswith(prefix)}
    return found


def read_task(key: str, files: Files, licence: str = "") -> tuple[TaskBundle, list[tuple[str, str]]]:
    """One folder as a task, and what was changed in it. Raises one of REFUSALS, or SuiteError for a file."""
    config = read_config(_required(files, "task.toml"))
    instruction = _required(files, "instruction.md").strip()
    if not instruction:
        raise ConfigProblem("instruction.md is empty")
    script = _required(files, "tests/test.sh")
    tests = {path[6:]: text_of(path, data) for path, data in sorted(files.items()) if path.startswith("tests/")}
    with_tools = needs_tools(script)
    if with_tools:
        tests[START] = STARTER
    recipe = _recipe(files, config)
    workdir = config.workdir or (recipe.workdir if recipe.workdir != "/" else WORKSPACE)
    links = {"/solution": SOLUTION} | ({workdir: "."} if workdir != WORKSPACE else {})
    contract = EnvironmentContract(
        source_format="harbor",
        licence=licence,
        links=links,
        files=placed_files(files, recipe, workdir),
        environment={**recipe.environment, **config.environment},
        mounts=[MOUNT] if with_tools else [],
        limits=config.limits,
    )
    check_contract_fields(contract)
    task = TaskBundle(
        key=key,
        prompt=[
            Message(role="system", content=SYSTEM.format(workdir=workdir)), Message(role="user", content=instruction),
        ],
        tools=TOOLS,
        tool_format="json",
        max_turns=MAX_TURNS,
        contract=contract,
        verifier=VerifierSpec(
            kind=VerifierKind.SCRIPT,
            config={"workdir": workdir, "environment": config.verifier_environment}
            | ({"script": START} if with_tools else {}),
            files=tests,
        ),
        reference=_reference(files),
        known_bad=["I could not solve this."],
        tags=list(dict.fromkeys(config.tags)),
    )  # fmt: skip
    changes = [*config.notes, ("environment/Dockerfile", f"the worker's own system stands for {recipe.image}")]
    return task, changes + _hints(script, with_tools)


def _required(files: Files, path: str) -> str:
    if path not in files:
        raise ConfigProblem(f"{path} is missing")
    return text_of(path, files[path])


def _recipe(files: Files, config: HarborConfig) -> Recipe:
    for name in BUILT:
        if f"environment/{name}" in files:
            raise NotRunnable(f"environment/{name}: several containers")
    if "environment/Dockerfile" not in files:
        raise NotRunnable("environment/Dockerfile is missing: the task is an image that this machine does not have")
    try:
        return read_dockerfile(_required(files, "environment/Dockerfile"))
    except NotRunnable as error:
        raise NotRunnable(
            f"environment/Dockerfile, {error}: only a base image, COPY and RUN of small files can be followed here"
        ) from error


def _reference(files: Files) -> list[Message]:
    """Turns that put the solution into the sandbox, run it and take it away; none where the task has none."""
    solution = {path[9:]: data for path, data in sorted(files.items()) if path.startswith("solution/")}
    if "solve.sh" not in solution:
        return []
    calls = [f"mkdir -p {SOLUTION}"]
    for path, data in solution.items():
        target = _quoted(f"{SOLUTION}/{path}")
        calls.append(f"mkdir -p {_quoted(posixpath.dirname(f'{SOLUTION}/{path}'))} && : > {target}")
        for start in range(0, len(data), PIECE):
            piece = base64.b64encode(data[start : start + PIECE]).decode()
            calls.append(f"printf %s {piece} | base64 -d >> {target}")
    calls += [f"bash {SOLUTION}/solve.sh", f"rm -rf {SOLUTION}"]
    messages = []
    for command in calls:
        call = json.dumps({"name": "shell", "arguments": {"command": command}})
        messages.append(Message(role="assistant", content=f"<tool_call>{call}</tool_call>"))
        messages.append(Message(role="tool", content=""))
    return [*messages, Message(role="assistant", content="Done.")]


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"


def _hints(script: str, with_tools: bool) -> list[tuple[str, str]]:
    """What in the tests is not as its author has it, and what asks for a network that is denied."""
    found = []
    if with_tools:
        message = "pytest and installers are the worker's: what it has counts as installed, nothing else can be"
        found.append(("tests/test.sh", message))
    if words := [word.strip() for word in FETCHING if word in script]:
        message = f"uses {', '.join(words)}: without network only what the worker has installed can be used"
        found.append(("tests/test.sh", message))
    return found
