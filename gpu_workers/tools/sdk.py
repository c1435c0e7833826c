"""The base of a tool class; standard library only, as this text is also the sandbox's module gpu_workers.tools."""

from __future__ import annotations

TYPE_CHECKING = False  # the module typing would take longer to import than the call
if TYPE_CHECKING:
    from typing import Any


class Tool:
    """A tool that the policy may call; its code runs inside the sandbox of the episode.

    `call` gets the arguments by name, after they were checked against `parameters`, a JSON schema; where that is not
    given it is made from the annotations of `call`. It returns text, or a dict or list that is sent as JSON. What it
    raises is told to the policy. `name` is the class's own in snake case, `description` its docstring.

    A call has a process of its own. Only `state` and the files of the workspace last until the next one: `state` holds
    JSON of at most 32 KiB, is kept outside the sandbox, and starts empty in every episode.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    state: dict[str, Any]

    def setup(self) -> None:
        """Called once in every episode, when its sandbox starts: make files, fill `state`."""

    def call(self, **arguments: Any) -> Any:
        raise NotImplementedError
