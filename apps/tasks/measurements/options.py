"""What a measurement may be told, and which of a suite's tasks it takes. Storage types; no database."""

import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from gpu_workers.contracts.tasks import TaskBundle
from ratchet.problems import Problem

Item = TypeVar("Item")


class MeasurementOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Choices of one measurement by mutants; with the suite they decide every candidate."""

    seed: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 1
    per_task: Annotated[int, msgspec.Meta(ge=1, le=50)] = 3  # mutants of a task, at most
    max_tasks: Annotated[int, msgspec.Meta(ge=0)] = 0  # 0: all; else so many drawn by the seed
    num_inputs: Annotated[int, msgspec.Meta(ge=10, le=500)] = 150  # of the stronger check, at most, a task


def parse_options(values: Mapping[str, Any]) -> MeasurementOptions:
    """Raises Problem 400 naming the option that is wrong."""
    try:
        return msgspec.convert(dict(values), MeasurementOptions)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        field = path.rstrip("`").strip(".") or message.partition("field `")[2].partition("`")[0]
        errors = [{"path": field, "message": message}]
        raise Problem("invalid", 400, "The measurement's options cannot be used.", errors) from error


def draw_tasks(tasks: Sequence[Item], options: MeasurementOptions) -> list[Item]:
    """All tasks, or `max_tasks` of them drawn by the seed, in their order."""
    if not options.max_tasks or options.max_tasks >= len(tasks):
        return list(tasks)
    chosen = random.Random(f"measured {options.seed}").sample(range(len(tasks)), options.max_tasks)
    return [tasks[index] for index in sorted(chosen)]


def asks_for_function(bundle: TaskBundle) -> bool:
    """Whether its reference can be mutated and checked: a prompt, a function's name and the tests that call it."""
    expected = bundle.verifier.expected
    names = ("prompt", "entry_point", "test")
    return isinstance(expected, dict) and all(isinstance(expected.get(name), str) for name in names)
