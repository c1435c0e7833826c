"""The program that judges a HumanEval answer, run in a sandbox of its own; only the standard library and the SDK.

HumanEval's own tests run in the verifier's process, the answer's function in another one that sees only the arguments
of each call. So the answer cannot end the tests, patch them, find the expected values or return an object that equals
everything. What remains is the weakness of the tests themselves.
"""

import ast
import re

from ratchet_verifier import failed, open_candidate, passed  # type: ignore[import-not-found]

CALL_SECONDS = 4.0
_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)


def extract(answer: str, entry_point: str) -> tuple[str, str]:
    """The code of an answer, and what is wrong with its form. One code block, or code and nothing else."""
    blocks = _FENCE.findall(answer)
    if len(blocks) > 1:
        return "", f"{len(blocks)} code blocks: write one"
    code = blocks[0] if blocks else answer
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return "", f"not Python: {error}"
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if names.count(entry_point) != 1:
        return "", f"must define {entry_point}() once, at the top level"
    return code, ""


def verify(episode: dict) -> dict:
    expected = episode["expected"]
    if not episode["answer"].strip():
        return failed("the answer is empty", reason_code="NO_OUTPUT")
    code, problem = extract(episode["answer"], expected["entry_point"])
    if problem:
        return failed(problem[:300], reason_code="FORMAT_INVALID")
    tests: dict = {"__name__": "tests"}
    exec(compile(expected["prompt"], "<prompt>", "exec"), tests)  # noqa: S102  its helpers, which some tests call
    exec(compile(expected["test"], "<tests>", "exec"), tests)  # noqa: S102
    # The prompt goes first: its imports and helpers are there for the answer, which defines the function again.
    files = {"solution.py": expected["prompt"] + "\n\n" + code}
    with open_candidate(files, timeout_seconds=CALL_SECONDS) as candidate:
        try:
            # Some tests compare the function with itself, by its name.
            function = tests[expected["entry_point"]] = getattr(candidate.module("solution"), expected["entry_point"])
            tests["check"](function)
        except AssertionError as error:
            return failed(f"a test fails {error}".strip()[:300])
        except Exception as error:
            reason = "AGENT_TIMEOUT" if getattr(error, "timed_out", False) else "WRONG_ANSWER"
            reason = "TAMPER_DETECTED" if type(error).__name__ == "Tampered" else reason
            return failed(f"{type(error).__name__}: {error}"[:300], reason_code=reason)
    return passed()
