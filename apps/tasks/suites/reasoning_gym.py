"""reasoning-gym: short questions with one right text, from an allow-list of its seeded generators.

The package gives credit for an answer that merely contains the right one, in some generators for none at all. So its
rows are used and its scores are not: an answer is one line `Answer: …`, compared as text. For every generator of the
list the package's own score reaches 1 exactly then; each imported row is checked for that.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apps.tasks.suites.definition import FailureMode, Suite, SuiteDefinition, SuiteTask
from apps.tasks.suites.errors import SuiteError
from apps.tasks.suites.listing import environment_python, list_rows
from gpu_workers.contracts.enums import ReasonCode, Split, VerifierKind
from gpu_workers.contracts.tasks import EnvironmentContract, Message, TaskBundle, VerifierSpec

NAME = "reasoning-gym"
ROWS = Path(__file__).with_name("reasoning_gym_rows.py")
# One right answer of one line, many possible ones: no two-way choices, where a coin does well.
GENERATORS: dict[str, dict[str, Any]] = {
    "basic_arithmetic": {}, "simple_equations": {}, "base_conversion": {}, "lcm": {}, "count_bits": {},
    "count_primes": {}, "leg_counting": {}, "letter_counting": {}, "word_sequence_reversal": {}, "caesar_cipher": {},
    "simple_geometry": {}, "bf": {},
}  # fmt: skip
SIZES = {Split.TRAIN: 40, Split.DEV: 4, Split.HELDOUT: 12, Split.REGRESSION: 3}  # of each generator
# An item is drawn by seed + index: far apart, or the splits would be the same items shifted.
SEEDS = {Split.TRAIN: 1, Split.DEV: 1_000_001, Split.HELDOUT: 2_000_001, Split.REGRESSION: 3_000_001}
SYSTEM = 'Solve the problem. End with one line "Answer: " and the answer alone.'
PATTERN = r"(?:\A|\n)Answer:[ \t]*(\S[^\n]*?)\s*\Z"
TIMEOUT_SECONDS = 180.0


def build(
    *, environments: Path, sizes: Mapping[Split, int] = SIZES, generators: Mapping[str, Mapping[str, Any]] = GENERATORS
) -> Suite:
    """The suite of fixed seeds: the same package gives the same tasks. Raises SuiteError."""
    python = environment_python(environments, NAME)
    tasks: list[SuiteTask] = []
    seen: set[str] = set()
    for split, size in sizes.items():
        request = json.dumps({"generators": dict(generators), "count": size, "seed": SEEDS[split]})
        for row in list_rows([str(python), "-I", str(ROWS), request], source=NAME, timeout_seconds=TIMEOUT_SECONDS):
            question = " ".join(row["question"].split()).casefold()
            if question not in seen:  # small generators repeat themselves: the first split keeps the question
                seen.add(question)
                tasks.append((split, task_of(split, row)))
    return _definition(generators), tasks


def task_of(split: Split, row: Mapping[str, Any]) -> TaskBundle:
    """A row as a task. Raises SuiteError where the package's scorer disagrees with an equality of texts."""
    key = f"{split}-{row['generator']}-{row['index']:04d}"
    answer = row["answer"]
    if row["score"] < 1 or any(score >= 1 for score in row["scores"]) or "\n" in answer or not answer.strip():
        message = f"its scorer does not accept exactly the answer {answer[:60]!r}: take the generator off the list"
        raise SuiteError.single(f"{NAME} {key}", message)
    return TaskBundle(
        key=key,
        prompt=[Message(role="system", content=SYSTEM), Message(role="user", content=row["question"])],
        contract=EnvironmentContract(source_format=NAME, licence="Apache-2.0"),
        verifier=VerifierSpec(
            kind=VerifierKind.EXACT, config={"pattern": PATTERN, "case_sensitive": True}, expected=answer
        ),
        reference=[Message(role="assistant", content=f"Answer: {answer}")],
        known_bad=[*(f"Answer: {text}" for text in row["wrong"]), f"Answer: {answer}\nAnswer: unknown", answer],
        tags=[row["generator"]],
    )


def _definition(generators: Mapping[str, Any]) -> SuiteDefinition:
    return SuiteDefinition(
        slug="reasoning-gym",
        title="Reasoning gym: one-line answers",
        description=f"Arithmetic, counting and text puzzles of {len(generators)} generators, answered with one line.",
        distribution=(
            f"Equal shares of the reasoning-gym generators {', '.join(generators)} at their default difficulty; the "
            "splits come from different seeds, and a question drawn before is left out. Held-out tasks are new "
            "questions of known kinds: a score says nothing of kinds that are not in this list."
        ),
        failure_modes=(
            FailureMode(ReasonCode.WRONG_ANSWER, "The text after `Answer:` is not the generator's answer."),
            FailureMode(ReasonCode.FORMAT_INVALID, "The last line is not `Answer:` with an answer."),
            FailureMode(ReasonCode.NO_OUTPUT, "The turn is empty."),
        ),
        verifier_kind=VerifierKind.EXACT,
        tags=("reasoning", "single-turn"),
    )
