"""A user's own suite from a header and lines of JSON: everything is checked first, every problem named."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from apps.tasks.suites.definition import FailureMode, Suite, SuiteDefinition
from apps.tasks.suites.errors import SuiteError, SuiteProblem
from apps.tasks.suites.tools import ServerEntry, ToolEntry, ToolReader
from gpu_workers.contracts.enums import Split, VerifierKind
from gpu_workers.contracts.tasks import (
    EnvironmentContract,
    Limits,
    Message,
    TaskBundle,
    ToolServer,
    ToolSpec,
    VerifierPart,
    VerifierSpec,
)
from ratchet.strict_json import StrictJsonError, loads

MAX_PROBLEMS = 50  # reported at once
MAX_LINE_BYTES = 1_000_000
NEED_EXPECTED = frozenset({VerifierKind.EXACT, VerifierKind.NUMBER, VerifierKind.TOOL_CALL, VerifierKind.EQUIVALENCE})
_ROLES = frozenset({"system", "user", "assistant", "tool"})


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class _FailureMode(_Strict, frozen=True, kw_only=True):
    code: str
    meaning: str


class _Verifier(_Strict, frozen=True, kw_only=True):
    kind: VerifierKind
    version: int = 1
    config: dict[str, Any] = {}
    program: str = ""
    files: dict[str, str] = {}
    parts: list[VerifierPart] = []
    repeats: int = 1

    def of_task(self, expected: Any) -> VerifierSpec:
        """The verifier of one task: what the suite says, with the task's own answer."""
        return VerifierSpec(
            kind=self.kind,
            version=self.version,
            config=self.config,
            expected=expected,
            program=self.program,
            files=self.files,
            parts=self.parts,
            repeats=self.repeats,
        )


class _Header(_Strict, frozen=True, kw_only=True):
    slug: str
    title: str
    verifier: _Verifier
    audit_verifier: _Verifier | None = None  # a stronger one: its verdicts are recorded beside, and never a reward
    description: str = ""
    distribution: str = ""
    failure_modes: list[_FailureMode] = []
    tags: list[str] = []
    tools: list[ToolEntry] = []  # of every task that names none itself
    tool_servers: list[ServerEntry] = []  # MCP servers in the sandbox of every task that names a tool of theirs
    system: str = ""  # system message of every task whose prompt is a string
    examples: list[Message] = []
    max_turns: int = 1
    limits: Limits = Limits()


class _Line(_Strict, frozen=True, kw_only=True):
    key: str
    split: Split
    prompt: str | list[Message]
    tools: list[ToolEntry] | None = None
    tool_format: str = "python"
    terminal_call: bool = False
    max_turns: int = 0
    expected: Any = None
    audit_expected: Any = None  # of the audit verifier; absent: as `expected`
    cluster: str = ""
    tags: list[str] = []
    reference: str | list[Message] = ""
    known_bad: list[str] = []
    files: dict[str, str] = {}
    examples: list[Message] | None = None


def parse_suite(header: Mapping[str, Any], lines: Iterable[str], tool_files: Mapping[str, str] | None = None) -> Suite:
    """Definition and tasks, or SuiteError with every problem found; line 0 is the header, lines count from 1.

    `tool_files`: sources of tools sent beside the suite, by file name.
    """
    problems: list[SuiteProblem] = []
    parsed = _convert(dict(header), _Header, 0, problems)
    if parsed is not None:
        problems += _check_header(parsed)
    rows = [(number, row) for number, text in enumerate(lines, 1) if (row := _read(number, text, problems)) is not None]
    reader = ToolReader(tool_files or {})
    servers = reader.read_servers(parsed.tool_servers) if parsed else []
    shared = reader.read(0, "tools", parsed.tools) if parsed else []
    tools: dict[int, list[ToolSpec]] = {}
    for number, row in rows:
        problems += _check_row(number, row, parsed)
        tools[number] = shared if row.tools is None else reader.read(number, "tools", row.tools)
    problems += reader.problems + _check_overlap(rows)
    if not rows and not problems:
        problems.append(SuiteProblem(1, "", "the file holds no task"))
    if problems or parsed is None:
        raise SuiteError(sorted(problems, key=lambda problem: problem.line)[:MAX_PROBLEMS])
    return _definition(parsed), [(row.split, _task(row, parsed, tools[number], servers)) for number, row in rows]


def _convert(data: Any, kind: type[Any], line: int, problems: list[SuiteProblem]) -> Any:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        names = [path.rstrip("`").strip("."), *_quoted_field(message)]
        problems.append(SuiteProblem(line, ".".join(name for name in names if name), message))
        return None


def _quoted_field(message: str) -> list[str]:
    """The field that msgspec names in its text when one is missing or unknown."""
    _, marker, rest = message.partition("field `")
    return [rest.partition("`")[0]] if marker else []


def _read(number: int, text: str, problems: list[SuiteProblem]) -> _Line | None:
    if not text.strip():
        return None
    if len(text.encode()) > MAX_LINE_BYTES:
        problems.append(SuiteProblem(number, "", f"the line is longer than {MAX_LINE_BYTES} bytes"))
        return None
    try:
        data = loads(text)
    except StrictJsonError as error:
        problems.append(SuiteProblem(number, "", str(error)))
        return None
    if not isinstance(data, dict):
        problems.append(SuiteProblem(number, "", f"expected an object, found {type(data).__name__}"))
        return None
    row: _Line | None = _convert(data, _Line, number, problems)
    return row


def _check_header(header: _Header) -> list[SuiteProblem]:
    problems = []
    if (
        not header.slug
        or not header.slug.replace("-", "").replace("_", "").isalnum()
        or header.slug != header.slug.lower()
    ):
        problems.append(SuiteProblem(0, "slug", "use lower-case letters, digits, - and _"))
    if not header.title.strip():
        problems.append(SuiteProblem(0, "title", "must not be empty"))
    if header.max_turns < 1:
        problems.append(SuiteProblem(0, "max_turns", "must be at least 1"))
    problems += _check_verifier("verifier", header.verifier)
    if header.audit_verifier is not None:
        problems += _check_verifier("audit_verifier", header.audit_verifier)
    return problems + _check_messages(0, "examples", header.examples)


_NEEDS: dict[str, tuple[tuple[VerifierKind, ...], str]] = {
    "program": ((VerifierKind.PROGRAM,), "def verify(episode: dict) -> dict"),
    "files": ((VerifierKind.TESTS, VerifierKind.SCRIPT), "the tree of tests, text by path"),
    "parts": ((VerifierKind.COMPOSITE,), "a list of {name, weight, verifier}"),
}


def _check_verifier(field: str, verifier: _Verifier) -> list[SuiteProblem]:
    """Each kind has what it needs and nothing else; the rest is found when the tasks are checked."""
    problems = []
    for name, (kinds, what) in _NEEDS.items():
        value = getattr(verifier, name)
        if (verifier.kind in kinds) != bool(value.strip() if isinstance(value, str) else value):
            message = f"is needed for, and only for, a verifier of kind {' or '.join(kinds)}: {what}"
            problems.append(SuiteProblem(0, f"{field}.{name}", message))
    if verifier.kind is VerifierKind.PROGRAM and verifier.program.strip():
        problems += _check_source(0, f"{field}.program", verifier.program, "verify")
    return problems


def _check_row(number: int, row: _Line, header: _Header | None) -> list[SuiteProblem]:
    problems = []
    if not row.key.strip():
        problems.append(SuiteProblem(number, "key", "must not be empty"))
    if not row.prompt:
        problems.append(SuiteProblem(number, "prompt", "must not be empty"))
    if isinstance(row.prompt, list):
        problems += _check_messages(number, "prompt", row.prompt)
        if row.prompt and row.prompt[-1].role != "user":
            problems.append(
                SuiteProblem(number, f"prompt[{len(row.prompt) - 1}].role", "the last message must be the user's")
            )
    if isinstance(row.reference, list):
        problems += _check_messages(number, "reference", row.reference)
        if row.reference and row.reference[-1].role != "assistant":
            problems.append(SuiteProblem(number, "reference", "must end in an assistant message"))
    if row.max_turns < 0:
        problems.append(SuiteProblem(number, "max_turns", "must be at least 1"))
    if row.tool_format not in ("python", "json"):
        problems.append(SuiteProblem(number, "tool_format", f"{row.tool_format!r} is unknown; use python or json"))
    if header is not None and header.verifier.kind in NEED_EXPECTED and row.expected is None:
        problems.append(SuiteProblem(number, "expected", f"is needed by a verifier of kind {header.verifier.kind}"))
    for path in row.files:
        if path.startswith("/") or ".." in path.split("/") or not path.strip():
            problems.append(SuiteProblem(number, f"files.{path}", "must be a relative path without '..'"))
    return problems + _check_messages(number, "examples", row.examples or [])


def _check_messages(number: int, field: str, messages: list[Message]) -> list[SuiteProblem]:
    return [
        SuiteProblem(
            number, f"{field}[{index}].role", f"{message.role!r} is unknown; use one of {', '.join(sorted(_ROLES))}"
        )
        for index, message in enumerate(messages)
        if message.role not in _ROLES
    ]


def _check_source(number: int, field: str, source: str, function: str) -> list[SuiteProblem]:
    """The source must compile and define the function; it is never run here."""
    try:
        compile(source, field, "exec")
    except (SyntaxError, ValueError) as error:
        return [SuiteProblem(number, field, f"does not compile: {error}")]
    if f"def {function}(" not in source:
        return [SuiteProblem(number, field, f"must define {function}()")]
    return []


def _check_overlap(rows: list[tuple[int, _Line]]) -> list[SuiteProblem]:
    """A key once; a prompt in one split only: else a held-out score would measure memory."""
    problems = []
    keys: dict[str, int] = {}
    prompts: dict[bytes, tuple[int, Split]] = {}
    for number, row in rows:
        if row.key in keys:
            problems.append(SuiteProblem(number, "key", f"{row.key!r} was used on line {keys[row.key]}"))
        keys.setdefault(row.key, number)
        prompt = msgspec.json.encode([row.prompt, row.files])
        first, split = prompts.setdefault(prompt, (number, row.split))
        if split is not row.split:
            message = f"the same prompt is in split {split} on line {first}: splits must not overlap"
            problems.append(SuiteProblem(number, "prompt", message))
    return problems


def _definition(header: _Header) -> SuiteDefinition:
    return SuiteDefinition(
        slug=header.slug,
        title=header.title,
        description=header.description,
        distribution=header.distribution,
        failure_modes=tuple(FailureMode(mode.code, mode.meaning) for mode in header.failure_modes),
        verifier_kind=header.verifier.kind,
        verifier_version=header.verifier.version,
        audit_kind=header.audit_verifier.kind if header.audit_verifier else None,
        audit_version=header.audit_verifier.version if header.audit_verifier else 1,
        tags=tuple(header.tags),
    )


def _task(row: _Line, header: _Header, tools: list[ToolSpec], servers: list[ToolServer]) -> TaskBundle:
    prompt = row.prompt
    if isinstance(prompt, str):
        system = [Message(role="system", content=header.system)] if header.system else []
        prompt = [*system, Message(role="user", content=prompt)]
    reference = row.reference
    if isinstance(reference, str):
        reference = [Message(role="assistant", content=reference)] if reference else []
    return TaskBundle(
        key=row.key,
        prompt=prompt,
        examples=header.examples if row.examples is None else row.examples,
        tools=tools,
        tool_servers=[server for server in servers if any(tool.server == server.name for tool in tools)],
        tool_format=row.tool_format,
        terminal_call=row.terminal_call,
        max_turns=row.max_turns or header.max_turns,
        contract=EnvironmentContract(files=row.files, limits=header.limits),
        verifier=header.verifier.of_task(row.expected),
        audit_verifier=_audit(row, header),
        reference=reference,
        known_bad=row.known_bad,
        cluster=row.cluster,
        tags=row.tags,
    )


def _audit(row: _Line, header: _Header) -> VerifierSpec | None:
    if header.audit_verifier is None:
        return None
    return header.audit_verifier.of_task(row.expected if row.audit_expected is None else row.audit_expected)
