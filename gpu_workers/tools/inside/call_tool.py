"""Runs one call of a tool in the process forked for it; shipped as text, standard library only.

The host sends `source`, `name`, `class` (empty where the module is written as `def call(arguments)`), `arguments`,
`state`, `sdk` and `phase` (call | setup). The text returned is the new state as one line of JSON, then the result.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # the module typing would take longer to import than the call
if TYPE_CHECKING:
    from typing import Any

MAX_STATE = 32 * 2**10


def run(request: dict[str, Any]) -> str:
    """Execute the module, then the tool in it."""
    module = _module("tool", request["source"], "<" + request["name"] + ">", request["sdk"])
    if not request["class"]:
        return "{}\n" + as_text(module.call(request["arguments"]))
    tool = getattr(module, request["class"])()
    tool.state = request["state"]
    if request["phase"] == "setup":
        tool.setup()
        return _state(tool) + "\n"
    result = as_text(tool.call(**request["arguments"]))
    return _state(tool) + "\n" + result


def _module(name: str, source: str, shown: str, sdk: str) -> Any:
    if sdk:
        _module("gpu_workers.tools", sdk, "<gpu_workers.tools>", "")
        package = sys.modules.setdefault("gpu_workers", type(sys)("gpu_workers"))
        package.__path__ = []
    module = sys.modules[name] = type(sys)(name)
    exec(compile(source, shown, "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    return module


def as_text(result: Any) -> str:
    """Text as it is; what JSON can hold as JSON. Raises TypeError on everything else."""
    if isinstance(result, str):
        return result
    if isinstance(result, (dict, list, bool, int, float)):
        import json

        try:
            return json.dumps(result, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise TypeError(
                "the tool returned a " + type(result).__name__ + " that is not JSON: " + str(error)
            ) from None
    raise TypeError("the tool returned " + type(result).__name__ + ", expected text or a dict")


def _state(tool: Any) -> str:
    if not isinstance(tool.state, dict):
        raise TypeError("the tool's state must be a dict, found " + type(tool.state).__name__)
    if not tool.state:
        return "{}"
    import json

    text = json.dumps(tool.state, allow_nan=False)
    if len(text) > MAX_STATE:
        raise ValueError("the tool's state has more than " + str(MAX_STATE) + " bytes")
    return text
