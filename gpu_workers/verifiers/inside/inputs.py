"""Inputs mutated by type: from the arguments of some calls to many more of the same shape, the same for a seed."""

from __future__ import annotations

import ast
import random
import re
from typing import Any

TEXT = "aZ 9,(.-"
MAX_ITEMS = 60  # longer sequences are not grown further
MAX_TEXT = 400
MAX_NUMBER = 10**9
OTHERS = 4  # values of the pool that one value becomes


def mutate(value: Any, rng: random.Random, pool: list) -> list:
    """Values of the same type, near and far; `pool` holds other values, of which those of this type are taken too.

    The order is fixed: edge cases first, then what the generator chooses.
    """
    kind = type(value)
    if kind is bool:
        return [not value]
    made = MUTATORS[kind](value, rng, pool) if kind in MUTATORS else []
    others = [other for other in pool if type(other) is kind and other != value]
    return made + rng.sample(others, min(OTHERS, len(others)))


def _int(value: int, rng: random.Random, _: list) -> list:
    near = [0, value + 1, value - 1, -value, 1, value * 2, value + rng.randint(2, 9)]
    return [*near, value * 100 + 1, rng.randint(10, 1000), rng.randint(1000, 10**5)]


def _float(value: float, rng: random.Random, _: list) -> list:
    return [0.0, -value, value + 1.0, value - 1.0, value / 2, value * 100.0, value + rng.random(), float(round(value))]


def _str(value: str, rng: random.Random, pool: list) -> list:
    made = ["", value + value, value[::-1], value.upper(), value.lower(), value.swapcase()]
    made += [value[1:], value[:-1], value + " ", " " + value, value.strip()]
    letters = "".join(text for text in pool if type(text) is str)[:MAX_TEXT] or TEXT
    place = rng.randrange(len(value) + 1)
    made += [
        value[:place] + rng.choice(letters) + value[place:],
        value[:place] + rng.choice(letters) + value[place + 1 :],
    ]
    made.append("".join(rng.sample(list(value), len(value))))
    for run in list(re.finditer("[0-9]+", value))[:4]:  # numbers in a text: dates, coordinates, amounts
        known = [str(other) for other in pool if type(other) is int and other >= 0]
        near = [str(max(0, int(run[0]) + step)) for step in (-1, 1, 10)] + [str(rng.randint(0, 40))]
        for digits in [*near, *rng.sample(known, min(2, len(known)))]:
            made.append(value[: run.start()] + digits.zfill(len(run[0])) + value[run.end() :])
    if " " in value:
        made += [value.replace(" ", "  ", 1), *_words(value, rng, pool)]
    return made


def _words(value: str, rng: random.Random, pool: list) -> list:
    """Texts of the same words or of others that are known: many functions refuse any word but a few."""
    words = value.split()
    known = [word for text in pool if type(text) is str for word in text.split()] + words
    if not words:
        return []
    place = rng.randrange(len(words))
    changed = [
        words[::-1], words[:place] + words[place + 1 :], [*words, words[place]], rng.sample(words, len(words)),
        [*words[:place], rng.choice(known), *words[place + 1 :]], [*words, rng.choice(known)],
        rng.sample(known, min(3, len(known))),
    ]  # fmt: skip
    return [" ".join(some) for some in changed]


def _list(value: list, rng: random.Random, pool: list) -> list:
    made: list = [[], value + value, value[::-1], value[1:], value[:-1]]
    items = pool_of_items(value, pool)
    if value:
        place = rng.randrange(len(value))
        made += [value[:1], [*value[:place], value[place], *value[place:]], value[:place] + value[place + 1 :]]
        made.append(rng.sample(value, len(value)))
        for index in sorted({0, place, len(value) - 1}):
            changed = mutate(value[index], rng, items)
            made += [[*value[:index], item, *value[index + 1 :]] for item in rng.sample(changed, min(3, len(changed)))]
    if items:
        made += [[*value, rng.choice(items)], [rng.choice(items), *value], [rng.choice(items)]]
    return made


def _tuple(value: tuple, rng: random.Random, pool: list) -> list:
    """A tuple's length is part of its shape."""
    made = [value[::-1]]
    for index, item in enumerate(value):
        changed = mutate(item, rng, pool_of_items(value, pool))
        made += [(*value[:index], other, *value[index + 1 :]) for other in rng.sample(changed, min(4, len(changed)))]
    return made


def _dict(value: dict, rng: random.Random, pool: list) -> list:
    made: list = [{}]
    for key in list(value)[:3]:
        made.append({name: item for name, item in value.items() if name != key})
        changed = mutate(value[key], rng, list(value.values()))
        made += [{**value, key: item} for item in rng.sample(changed, min(3, len(changed)))]
        renamed = mutate(key, rng, list(value))
        made += [{**value, name: value[key]} for name in rng.sample(renamed, min(2, len(renamed)))]
    return made


def _set(value: set, rng: random.Random, pool: list) -> list:
    return [set(items) for items in _list(sorted(value, key=repr), rng, pool)]


MUTATORS: dict = {int: _int, float: _float, str: _str, list: _list, tuple: _tuple, dict: _dict, set: _set}


def pool_of_items(value: Any, pool: list) -> list:
    """What lies inside a sequence and the pool's sequences of its type, and the pool's values of its items' types."""
    items = [item for sequence in [value, *pool] if type(sequence) is type(value) for item in sequence][:200]
    kinds = {type(item) for item in value}
    return items + [other for other in pool if type(other) in kinds]


def literals(code: str) -> list:
    """Numbers and short texts that a program compares with, and the numbers beside them: where answers change."""
    found: list = []
    for node in ast.walk(ast.parse(code)):
        value = node.value if isinstance(node, ast.Constant) else None
        if type(value) is int:
            found += [value, value - 1, value + 1, -value]
        elif type(value) is float:
            found += [value, value - 0.1, value + 0.1]
        elif type(value) is str and len(value) <= 20:
            found.append(value)
    return list({repr(value): value for value in found}.values())


def small(value: Any) -> bool:
    """Whether a value is worth a call: no giant numbers, no endless sequences."""
    kind = type(value)
    if kind is int or kind is float:
        return -MAX_NUMBER <= value <= MAX_NUMBER
    if kind is str:
        return len(value) <= MAX_TEXT
    if kind in (list, tuple, set):
        return len(value) <= MAX_ITEMS and all(small(item) for item in value)
    if kind is dict:
        return len(value) <= MAX_ITEMS and all(small(key) and small(item) for key, item in value.items())
    return value is None or kind is bool


def weight(value: Any) -> float:
    """How much work a value may mean: numbers by size, containers by what they hold."""
    kind = type(value)
    if kind is int or kind is float:
        return abs(value)
    if kind is str:
        return float(len(value))
    if kind is dict:
        return len(value) + sum(weight(key) + weight(item) for key, item in value.items())
    if kind in (list, tuple, set):
        return len(value) + sum(weight(item) for item in value)
    return 1.0


def more_inputs(seeds: list, limit: int, seed: str, known: list = ()) -> list:  # type: ignore[assignment]
    """At most `limit` argument lists: those of `seeds` first, then one argument changed, then several changes.

    `known`: values that may be put anywhere where one of their type is.

    Every seed is changed once before one is changed twice; equal ones are left out, whatever their types' equality.
    """
    rng = random.Random("inputs " + seed)
    found: list = []
    seen: set = set()

    def add(arguments: list) -> None:
        mark = repr(arguments)
        if mark not in seen and len(found) < limit and all(small(item) for item in arguments):
            seen.add(mark)
            found.append(arguments)

    for arguments in seeds[: limit // 2]:
        add(list(arguments))
    first = [changed for arguments in found[:] for changed in one_step(arguments, found, rng, known)]
    rng.shuffle(first)
    room = limit - (limit - len(found)) // 3  # a third is left for what is further away
    for arguments in first[: max(0, room - len(found)) * 2]:
        if len(found) < room:
            add(arguments)
    for _ in range(limit * 10):
        if len(found) >= limit or not found:
            break
        changed = one_step(rng.choice(found), found, rng, known)
        if changed:
            add(rng.choice(changed))
    return found


def one_step(arguments: list, others: list, rng: random.Random, known: list) -> list:
    """Argument lists in which one argument is another."""
    made = []
    for index, value in enumerate(arguments):
        pool = [other[index] for other in others[:30] if len(other) > index] + list(known)
        made += [[*arguments[:index], changed, *arguments[index + 1 :]] for changed in mutate(value, rng, pool)]
    return made
