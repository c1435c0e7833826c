"""What a rollout worker needs to know of a task: prompt, tools, environment contract, verifier."""

from typing import Any

import msgspec

from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.contracts.environment import EnvironmentContract, Limits


class ToolSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tool the policy may call. `source` is a Python module run inside the sandbox: either
    `def call(arguments: dict) -> str`, or a class derived from gpu_workers.tools.Tool whose name is this one.
    With `server` it is a tool of that MCP server, named `<server>.<tool>`. With neither it must be a built-in:
    shell, python, read_file, write_file."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(  # JSON schema of the arguments
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    source: str = ""
    server: str = ""


class ToolServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An MCP server (stdio transport) that lives inside the sandbox as long as the episode, frozen between its calls.

    Exactly one of `source`, a Python script that is in no file of the sandbox, and `command`, a program of the sandbox.
    """

    name: str
    source: str = ""
    command: list[str] = []
    environment: dict[str, str] = {}  # variables beside those of the contract
    protocol: str = ""  # MCP revision settled when its tools were listed; empty: negotiated in every episode
    start_timeout_seconds: float = 20.0


class VerifierSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a finished episode is judged.

    `config` is shared by a suite's tasks (e.g. tolerance, partial credit); `expected` is the task's own truth and
    never enters the episode's sandbox. PROGRAM: `program` is a Python module with
    `def verify(episode: dict) -> dict` (keys of episode: answer, messages, files, expected, task;
    result: score 0..1, message) run in a separate sandbox. TESTS: `files` is the tree of tests. COMPOSITE: `parts`.
    """

    kind: VerifierKind
    version: int = 1
    config: dict[str, Any] = {}
    expected: Any = None
    program: str = ""
    files: dict[str, str] = {}  # path in the test tree -> text
    parts: list["VerifierPart"] = []
    repeats: int = 1  # runs that must agree; where they do not, the episode is quarantined

    @property
    def sees_files(self) -> bool:
        """Whether the workspace is part of what is judged."""
        kinds = (VerifierKind.PROGRAM, VerifierKind.TESTS, VerifierKind.SCRIPT)
        return self.kind in kinds or any(p.verifier.sees_files for p in self.parts)


class VerifierPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One verifier of a composite. `weight` is its share of the score, relative to the others."""

    name: str
    verifier: VerifierSpec
    weight: float = 1.0


class HostedEnvironment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A task of an environment built with another framework, which runs in a process of its own.

    The score is where the framework's reward lies between `min_reward`, at or below which it is 0, and `max_reward`,
    above which it is refused. From `pass_reward` on it is a pass.
    """

    kind: str  # verifiers | openenv
    id: str  # the environment's package
    index: int  # of the task in it
    config: dict[str, Any] = {}
    framework: str = ""  # the package that the task was imported with, name==version
    digest: str = ""  # SHA-256 of the environment's files at import: other code is refused
    min_reward: float = 0.0
    max_reward: float = 1.0
    pass_reward: float = 1.0


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One chat message of a prompt or few-shot example."""

    role: str  # system | user | assistant | tool
    content: str


class TaskBundle(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One task as stored (content-addressed) in the object store and read by workers."""

    key: str  # stable within the suite
    prompt: list[Message]  # system and user messages, without few-shot examples
    examples: list[Message] = []  # worked examples, inserted before the last user message when a policy asks for shots
    tools: list[ToolSpec] = []
    tool_servers: list[ToolServer] = []  # whose tools are among `tools`
    tool_format: str = "python"  # how the policy writes calls: python `f(a=1)` | json <tool_call>{...}</tool_call>
    terminal_call: bool = False  # True: the first call is the answer (function-calling suites); it is not executed
    max_turns: int = 1
    contract: EnvironmentContract = EnvironmentContract()
    hosted: HostedEnvironment | None = None  # whose tools these are; the sandbox of the contract is not used then
    verifier: VerifierSpec
    audit_verifier: VerifierSpec | None = None  # a stronger check whose verdict is recorded and never a reward
    reference: list[Message] = []  # assistant (and tool) turns that pass, for supervised training and the import check
    known_bad: list[str] = []  # final answers that must fail
    cluster: str = ""  # template, repository or function: unit of clustering in statistics
    tags: list[str] = []

    def conversation(self, num_shots: int = 0) -> list[Message]:
        """The prompt with its first `num_shots` worked examples put before the last user message.

        One example runs from a user message to the message before the next user message.
        """
        if num_shots <= 0:
            return list(self.prompt)
        starts = [index for index, message in enumerate(self.examples) if message.role == "user"]
        stop = starts[num_shots] if num_shots < len(starts) else len(self.examples)
        return [*self.prompt[:-1], *self.examples[:stop], *self.prompt[-1:]]


__all__ = ["EnvironmentContract", "HostedEnvironment", "Limits", "Message", "TaskBundle", "ToolSpec", "VerifierSpec"]
