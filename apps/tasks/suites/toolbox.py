"""The toolbox suite: multi-turn questions about hidden tables, answered with a lookup and a calculator."""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from apps.tasks.suites.definition import FailureMode, Suite, SuiteDefinition, SuiteTask
from apps.tasks.suites.toolbox_tools import FIELDS, TABLE_FILE, TOOLS, evaluate
from gpu_workers.contracts.enums import ReasonCode, Split, VerifierKind
from gpu_workers.contracts.tasks import EnvironmentContract, Limits, Message, TaskBundle, VerifierSpec

SIZES = {Split.TRAIN: 600, Split.DEV: 64, Split.HELDOUT: 120, Split.REGRESSION: 32}
NUM_EXAMPLES = 2
NUM_DISTRACTORS = 2  # rows of the table that no question asks about

SYSTEM = (
    "Answer with the tools. One call a turn, nothing else in it:\n"
    'lookup(entity="...", field="...") reads price, stock or weight\n'
    'calc(expression="...") computes\n'
    "When you have read the result, reply: Answer: <number>"
)

# A family is a noun; no family is in two splits, so every entity of a held-out question is new to the policy.
FAMILIES = {
    Split.TRAIN: (
        "kettle", "lamp", "chair", "table", "mirror", "basket", "blanket", "clock", "bottle", "drill", "hammer",
        "ladder",
        "helmet", "jacket", "wallet", "guitar", "camera", "printer", "monitor", "speaker", "pencil", "notebook", "tent",
        "canoe", "saddle", "anchor", "candle", "curtain", "pillow", "teapot",
    ),
    Split.DEV: ("shovel", "scarf", "trumpet", "toaster", "backpack", "vase"),
    Split.HELDOUT: (
        "wrench", "sofa", "violin", "scanner", "compass", "kayak", "bucket", "carpet", "necklace", "telescope", "oven",
        "sled", "fountain", "whistle", "barrel",
    ),
    Split.REGRESSION: ("crate", "pulley", "harp", "stove", "goggles", "rug"),
}  # fmt: skip
EXAMPLE_FAMILIES = ("mug", "brush", "fork", "bench")
ADJECTIVES = (
    "red", "blue", "green", "old", "small", "large", "copper", "steel", "oak", "glass", "silver", "plastic", "round",
    "heavy", "light", "striped",
)  # fmt: skip
RESULTS_CREDIT = 0.4  # for the right results on the way; a success still needs the right answer
ANSWER_PATTERN = r"\A\s*(?:Answer:)?\s*(-?\d+(?:\.\d+)?)\s*\.?\s*\Z"  # one number: a list of guesses is no answer
VALUES = {"price": (11, 98), "stock": (101, 899), "weight": (12, 79)}

DEFINITION = SuiteDefinition(
    slug="toolbox",
    title="Toolbox: look up, compute, answer",
    description="Questions about a table the policy cannot see: it has to look up, calculate, read and answer.",
    distribution=(
        "Seven templates of two to four turns over tables with random values. The families of things (kettles, lamps) "
        "of train, dev, held-out and regression are disjoint; the clusters of the statistics are template and family."
    ),
    failure_modes=(
        FailureMode(ReasonCode.WRONG_ANSWER, "The number is not the one the table gives."),
        FailureMode(ReasonCode.FORMAT_INVALID, "The answer is not one number, or the turn never ended."),
        FailureMode(ReasonCode.NO_OUTPUT, "The final turn is empty."),
        FailureMode(ReasonCode.TURN_LIMIT, "Still calling tools when the turns ran out."),
        FailureMode(ReasonCode.AGENT_TIMEOUT, "The tools used up the episode's time."),
    ),
    verifier_kind=VerifierKind.NUMBER,
    audit_kind=VerifierKind.NUMBER,
    tags=("tools", "multi-turn", "sandbox"),
)


@dataclass(frozen=True)
class _World:
    """The things a question may speak of, and a table of their values."""

    entities: tuple[str, str]
    table: Mapping[str, Mapping[str, int]]
    numbers: tuple[int, int]


@dataclass(frozen=True)
class _Call:
    """A turn of the solution and what the tool says to it."""

    text: str
    result: int


@dataclass(frozen=True)
class _Plan:
    """A question, the calls that solve it, and its answer (the last result unless given)."""

    question: str
    calls: tuple[_Call, ...]
    answer: int


def _lookup(world: _World, index: int, field: str) -> _Call:
    entity = world.entities[index]
    return _Call(f'lookup(entity="{entity}", field="{field}")', world.table[entity][field])


def _calc(expression: str) -> _Call:
    return _Call(f'calc(expression="{expression}")', evaluate(expression))


def _plan(question: str, *calls: _Call) -> _Plan:
    return _Plan(question, calls, calls[-1].result)


def _value(world: _World) -> _Plan:
    field = FIELDS[world.numbers[0] % len(FIELDS)]
    return _plan(f"What is the {field} of the {world.entities[0]}?", _lookup(world, 0, field))


def _product(world: _World) -> _Plan:
    left, right = world.numbers
    question = f"A box holds {left} {world.entities[0]}s. How many are in {right} boxes?"
    return _plan(question, _calc(f"{left}*{right}"))


def _cost(world: _World) -> _Plan:
    quantity = world.numbers[0]
    price = _lookup(world, 0, "price")
    question = f"What do {quantity} pieces of the {world.entities[0]} cost?"
    return _plan(question, price, _calc(f"{price.result}*{quantity}"))


def _left(world: _World) -> _Plan:
    sold = world.numbers[1]
    stock = _lookup(world, 0, "stock")
    question = f"How many pieces of the {world.entities[0]} are left in stock after we sell {sold}?"
    return _plan(question, stock, _calc(f"{stock.result}-{sold}"))


def _total(world: _World) -> _Plan:
    first, second = _lookup(world, 0, "weight"), _lookup(world, 1, "weight")
    question = f"What do the {world.entities[0]} and the {world.entities[1]} weigh together?"
    return _plan(question, first, second, _calc(f"{first.result}+{second.result}"))


def _difference(world: _World) -> _Plan:
    first, second = _lookup(world, 0, "price"), _lookup(world, 1, "price")
    question = f"What is the price of the {world.entities[0]} minus the price of the {world.entities[1]}?"
    return _plan(question, first, second, _calc(f"{first.result}-{second.result}"))


def _cheaper(world: _World) -> _Plan:
    first, second = _lookup(world, 0, "price"), _lookup(world, 1, "price")
    question = f"What is the lower price, that of the {world.entities[0]} or that of the {world.entities[1]}?"
    return _Plan(question, (first, second), min(first.result, second.result))


TEMPLATES: dict[str, Callable[[_World], _Plan]] = {
    "value": _value,
    "product": _product,
    "cost": _cost,
    "left": _left,
    "total": _total,
    "difference": _difference,
    "cheaper": _cheaper,
}

# Easy ones more often: a policy that starts at chance needs groups in which some episodes succeed.
CYCLE = ("value", "cost", "left", "product", "value", "cost", "left", "total", "difference", "cheaper")


def build(*, seed: int = 20, sizes: Mapping[Split, int] = SIZES) -> Suite:
    """The suite of a seed: the same seed gives the same tasks, byte for byte."""
    tasks: list[SuiteTask] = []
    for split, size in sizes.items():
        rng = random.Random(f"toolbox {seed} {split}")
        seen: set[str] = set()
        while len(seen) < size:
            template = CYCLE[len(seen) % len(CYCLE)]
            task = _task(f"{split}-{len(seen):04d}-{template}", template, split, rng)
            question = task.prompt[-1].content
            if question not in seen:
                seen.add(question)
                tasks.append((split, task))
    return DEFINITION, tasks


def _task(key: str, template: str, split: Split, rng: random.Random) -> TaskBundle:
    family = rng.choice(FAMILIES[split])
    world = _world(rng, family, FAMILIES[split])
    plan = TEMPLATES[template](world)
    examples: list[Message] = []
    for _ in range(NUM_EXAMPLES):
        example = TEMPLATES[template](_world(rng, rng.choice(EXAMPLE_FAMILIES), EXAMPLE_FAMILIES))
        examples += [Message(role="user", content=example.question), *_solution(example)]
    wrong = plan.answer + rng.randint(1, 9)
    looked_up = [str(call.result) for call in plan.calls if call.text.startswith("lookup(")]
    return TaskBundle(
        key=key,
        prompt=[Message(role="system", content=SYSTEM), Message(role="user", content=plan.question)],
        examples=examples,
        tools=list(TOOLS),
        max_turns=len(plan.calls) + 2,
        contract=EnvironmentContract(
            files={TABLE_FILE: json.dumps(world.table)},
            limits=Limits(tool_timeout_seconds=20.0, episode_timeout_seconds=120.0),
        ),
        verifier=VerifierSpec(
            kind=VerifierKind.NUMBER,
            config={"pattern": ANSWER_PATTERN, "results_credit": RESULTS_CREDIT},
            expected={"answer": plan.answer, "results": [str(call.result) for call in plan.calls]},
        ),
        # The tables are hidden: a right answer that rests on no lookup is a guess, or a leak.
        audit_verifier=VerifierSpec(
            kind=VerifierKind.NUMBER,
            config={"pattern": ANSWER_PATTERN, "needs_results": True},
            expected={"answer": plan.answer, "results": looked_up},
        ),
        reference=_solution(plan),
        known_bad=[f"Answer: {wrong}", "Answer: unknown", f"Answer: {wrong} {plan.answer}", plan.calls[-1].text],
        cluster=f"{template}/{family}",
        tags=[template],
    )


def _world(rng: random.Random, family: str, families: tuple[str, ...]) -> _World:
    others = [name for name in families if name != family]
    nouns = [family, *rng.sample(others, min(len(others), 1 + NUM_DISTRACTORS))]
    names = [f"{rng.choice(ADJECTIVES)} {noun}" for noun in nouns]
    table = {name: {field: rng.randint(*VALUES[field]) for field in FIELDS} for name in names}
    return _World((names[0], names[1]), table, (rng.randint(12, 59), rng.randint(13, 97)))


def _solution(plan: _Plan) -> list[Message]:
    """Assistant turns that solve a plan, with the tools' results between them."""
    turns: list[Message] = []
    for call in plan.calls:
        turns += [Message(role="assistant", content=call.text), Message(role="tool", content=str(call.result))]
    return [*turns, Message(role="assistant", content=f"Answer: {plan.answer}")]
