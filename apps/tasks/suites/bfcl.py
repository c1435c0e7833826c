"""Berkeley function calling (BFCL) from its wheel's data files: one call, split by function."""

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from apps.tasks.suites.bfcl_format import gold_call, signature, tool_spec
from apps.tasks.suites.definition import FailureMode, Suite, SuiteDefinition, SuiteTask
from apps.tasks.suites.errors import SuiteError
from gpu_workers.contracts.enums import ReasonCode, Split, VerifierKind
from gpu_workers.contracts.tasks import Message, TaskBundle, VerifierSpec

CATEGORIES = ("simple_python", "multiple", "live_simple")
# About 250 and 72 tokens of SmolLM2: longer ones are left out, and counted in the description.
MAX_PROMPT_CHARACTERS = 750
MAX_GOLD_CHARACTERS = 200
HELDOUT_SHARE = 0.35  # of the functions
DEV_TASKS = 96
REGRESSION_TASKS = 32
PARTIAL_CREDIT = {"partial_credit": True}

SYSTEM = "Answer with one call of a function below and nothing else, with the arguments by name."

# Functions of our own: an example must not show a function of any split.
EXAMPLES = (
    (
        "send_parcel(recipient: str, weight_kg: float, express: bool = False): Sends a parcel.",
        "Please send a 2.5 kg parcel to Maria Lopez by express.",
        'send_parcel(recipient="Maria Lopez", weight_kg=2.5, express=True)',
    ),
    (
        "paint.mix(colors: list[str], litres: int): Mixes paint.\npaint.order(color: str, litres: int): Orders paint.",
        "Mix 4 litres of paint out of red and yellow.",
        'paint.mix(colors=["red", "yellow"], litres=4)',
    ),
    (
        'orchard_yield(trees: int, fruit: "apple"|"pear", year: int = None): Estimates a harvest.',
        "How much will 120 pear trees give?",
        'orchard_yield(trees=120, fruit="pear")',
    ),
)


@dataclass(frozen=True)
class _Row:
    """One usable row of the data files."""

    key: str
    question: str
    functions: tuple[dict[str, Any], ...]
    gold_name: str
    accepted: dict[str, list[Any]]

    @property
    def prompt(self) -> str:
        return "\n".join(signature(function) for function in self.functions) + f"\n\n{self.question}"

    @property
    def gold(self) -> str:
        return gold_call(self.gold_name, self.accepted)

    @property
    def names(self) -> set[str]:
        return {function["name"] for function in self.functions}


def data_folder() -> Path:
    """The data files of the installed wheel; the package itself is never imported."""
    try:
        folder = Path(str(distribution("bfcl-eval").locate_file("bfcl_eval/data")))
    except PackageNotFoundError as error:
        hint = "run `pip install --no-deps bfcl-eval==2026.3.23`"
        raise SuiteError.single("bfcl-eval", f"the package is not installed: {hint}") from error
    if not folder.is_dir():
        raise SuiteError.single("bfcl-eval", f"{folder} is missing: install the package again")
    return folder


def build(*, data: Path | None = None, seed: int = 3) -> Suite:
    """The suite of the wheel's files; the same files and seed give the same tasks."""
    rows = list(_read_rows(data or data_folder()))
    usable = [r for r in rows if len(r.prompt) <= MAX_PROMPT_CHARACTERS and len(r.gold) <= MAX_GOLD_CHARACTERS]
    split_of = split_functions(usable, seed)
    reserved = {name for name, split in split_of.items() if split is not Split.TRAIN}
    tasks: list[SuiteTask] = []
    dropped = 0
    for row in usable:
        split = split_of[row.gold_name]
        if split is Split.TRAIN and row.names & reserved:
            dropped += 1
            continue
        tasks.append((split, _task(row)))
    return _definition(len(rows), len(rows) - len(usable), dropped), tasks


def split_functions(rows: Sequence[_Row], seed: int) -> dict[str, Split]:
    """Split of every gold function: held-out by share of functions, dev and regression by number of tasks."""
    names = sorted({row.gold_name for row in rows})
    random.Random(f"bfcl {seed}").shuffle(names)
    counts = {name: sum(row.gold_name == name for row in rows) for name in names}
    num_heldout = round(HELDOUT_SHARE * len(names))
    split_of = dict.fromkeys(names[:num_heldout], Split.HELDOUT)
    rest = iter(names[num_heldout:])
    for split, wanted in ((Split.DEV, DEV_TASKS), (Split.REGRESSION, REGRESSION_TASKS)):
        filled = 0
        while filled < wanted and (name := next(rest, None)) is not None:
            split_of[name] = split
            filled += counts[name]
    return split_of | dict.fromkeys(rest, Split.TRAIN)


def _read_rows(folder: Path) -> Iterable[_Row]:
    for category in CATEGORIES:
        questions = read_lines(folder / f"BFCL_v4_{category}.json")
        answers = {row["id"]: row for row in read_lines(folder / "possible_answer" / f"BFCL_v4_{category}.json")}
        for question in questions:
            truth = answers[question["id"]]["ground_truth"]
            messages = question["question"][0]
            if len(truth) != 1 or [message["role"] for message in messages] != ["user"]:
                continue
            ((name, accepted),) = truth[0].items()
            yield _Row(
                key=question["id"],
                question=messages[0]["content"].strip(),
                functions=tuple(question["function"]),
                gold_name=name,
                accepted=accepted,
            )


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Rows of one data file. Raises SuiteError."""
    try:
        text = path.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, json.JSONDecodeError) as error:
        raise SuiteError.single(path.name, f"cannot be read: {error}; install bfcl-eval again") from error


def _task(row: _Row) -> TaskBundle:
    expected = [{"name": row.gold_name, "arguments": row.accepted}]
    examples: list[Message] = []
    for functions, question, answer in EXAMPLES:
        examples.append(Message(role="user", content=f"{functions}\n\n{question}"))
        examples.append(Message(role="assistant", content=answer))
    return TaskBundle(
        key=row.key,
        prompt=[Message(role="system", content=SYSTEM), Message(role="user", content=row.prompt)],
        examples=examples,
        tools=[tool_spec(function) for function in row.functions],
        terminal_call=True,
        verifier=VerifierSpec(
            kind=VerifierKind.TOOL_CALL,
            config=PARTIAL_CREDIT,
            expected=expected,
        ),
        # BFCL forgives case, blanks and punctuation of texts; a real function would get them as they are.
        audit_verifier=VerifierSpec(kind=VerifierKind.TOOL_CALL, config={"exact": True}, expected=expected),
        reference=[Message(role="assistant", content=row.gold)],
        known_bad=["I cannot answer that.", row.gold[:-1], f"{row.gold}\n{row.gold}", "no_such_function(x=1)"],
        cluster=row.gold_name,
        tags=[row.key.rsplit("_", 1)[0]],
    )


def _definition(total: int, too_long: int, dropped: int) -> SuiteDefinition:
    return SuiteDefinition(
        slug="bfcl",
        title="Berkeley function calling, single call",
        description="Given function signatures and a question, write the one call that answers it.",
        distribution=(
            f"BFCL v4 simple_python, multiple and live_simple: {total} single-call tasks, less {too_long} whose prompt "
            "or answer is long. Split by the function of the right answer: a function of dev, held-out or regression "
            f"is in no training prompt, not even as a distractor ({dropped} training tasks were dropped for that)."
        ),
        failure_modes=(
            FailureMode(ReasonCode.FORMAT_INVALID, "The text is not exactly one call with literal arguments."),
            FailureMode(ReasonCode.WRONG_ANSWER, "Another function, or an argument that is missing, extra or wrong."),
            FailureMode(ReasonCode.NO_OUTPUT, "The turn is empty."),
        ),
        verifier_kind=VerifierKind.TOOL_CALL,
        audit_kind=VerifierKind.TOOL_CALL,
        tags=("tools", "function-calling", "single-turn"),
    )
