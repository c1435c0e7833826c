"""What people corrected in the answers of Berkeley function calling between two releases of its data files."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from apps.tasks.suites.bfcl import CATEGORIES, data_folder, read_lines
from apps.tasks.suites.bfcl_format import OMITTED, gold_call
from apps.tasks.suites.errors import SuiteError

# Every category with answers, by its present name; where it once had another one, that too.
ALL_CATEGORIES = {
    "simple_python": "simple", "simple_java": "java", "simple_javascript": "javascript", "multiple": "",
    "parallel": "", "parallel_multiple": "", "live_simple": "", "live_multiple": "", "live_parallel": "",
    "live_parallel_multiple": "", "multi_turn_base": "", "multi_turn_miss_func": "", "multi_turn_miss_param": "",
    "multi_turn_long_context": "",
}  # fmt: skip
_ASKED = ("question", "function", "initial_config", "involved_classes")

Call = dict[str, Any]  # {"name": function, "arguments": {parameter: accepted values}}


class CategoryChange(msgspec.Struct, frozen=True, kw_only=True):
    """One category: tasks of both releases, with another answer, and of them those asked otherwise too."""

    category: str
    num_tasks: int
    num_corrected: int
    num_asked_otherwise: int


def compare_keys(older: Path, newer: Path | None = None) -> list[CategoryChange]:
    """Every category of which both releases have answers; `newer`: the installed package's. Raises SuiteError."""
    folder, changes = newer or data_folder(), []
    for category in ALL_CATEGORIES:
        new_answers, old_answers = _answers(folder, category), _answers(older, category)
        if not new_answers or not old_answers:
            continue
        both = new_answers.keys() & old_answers.keys()
        corrected = {key for key in both if new_answers[key]["ground_truth"] != old_answers[key]["ground_truth"]}
        asked_new, asked_old = _questions(folder, category), _questions(older, category)
        asked = sum(_asked(asked_new[key]) != _asked(asked_old[key]) for key in corrected)
        change = CategoryChange(
            category=category, num_tasks=len(both), num_corrected=len(corrected), num_asked_otherwise=asked
        )
        changes.append(change)
    if not changes:
        raise SuiteError.single(older.name, "holds no answers of Berkeley function calling: name its folder `data`")
    return changes


def older_keys(older: Path) -> dict[str, Call]:
    """The one call that an older release expects, by the present key of the task; only the suite's categories."""
    keys = {}
    for category in CATEGORIES:
        for key, row in _answers(older, category).items():
            if len(row["ground_truth"]) == 1:
                ((name, accepted),) = row["ground_truth"][0].items()
                keys[key] = {"name": name, "arguments": accepted}
    return keys


def key_answers(old: Call, new: Call) -> list[str]:
    """Answers on which two keys may differ: the first call of each, and one for every value only one of them accepts.

    Equal keys give one answer, in whatever order they name their parameters. No two are the same text.
    """
    old, new = (msgspec.json.decode(msgspec.json.encode(call, order="sorted")) for call in (old, new))
    calls = [gold_call(call["name"], call["arguments"]) for call in (old, new)]
    for mine, other in ((old, new), (new, old)):
        for parameter, values in mine["arguments"].items():
            for value in _only_in(values, other["arguments"].get(parameter, [])):
                changed = {**mine["arguments"], parameter: [value, *([OMITTED] if value == OMITTED else [])]}
                calls.append(gold_call(mine["name"], changed))
    return list(dict.fromkeys(calls))


def _only_in(values: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    known = [msgspec.json.encode(other) for other in others]
    return [value for value in values if msgspec.json.encode(value) not in known]


def _answers(folder: Path, category: str) -> dict[str, dict[str, Any]]:
    return _rows(folder / "possible_answer", category)


def _questions(folder: Path, category: str) -> dict[str, dict[str, Any]]:
    return _rows(folder, category)


def _rows(folder: Path, category: str) -> dict[str, dict[str, Any]]:
    """Rows of a category by their present id, whatever the category was called then; none where it is missing."""
    for name in (category, ALL_CATEGORIES[category]):
        files = sorted(folder.glob(f"BFCL_v[0-9]_{name}.json")) if name else []
        if files:
            return {row["id"].replace(name, category, 1): row for row in read_lines(files[-1])}
    return {}


def _asked(row: Mapping[str, Any]) -> list[Any]:
    return [row.get(name) for name in _ASKED]
