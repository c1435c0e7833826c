"""What a check takes from a candidate beside plain, finite values: it is noted, and asked once more at the end.

A check that passes the reference says by that what it needs: see `verifiers.leaning`.
"""

from __future__ import annotations

import math
import os
import random
import string
from typing import Any

RANDOM = random.SystemRandom()  # no seed of the tests makes decoys known, none of theirs is moved on
MAX_NOTED = 20  # equalities and methods that are asked again
NUM_TRIES = 24
MIN_MADE = 6  # objects of other arguments of which one must differ
MIN_COMMON = 4


class Trust:
    """Of one process of the candidate. `words`: what was taken -> how often."""

    def __init__(self) -> None:
        self.words: dict = {}
        self.constant: set = set()  # methods that said the same whatever they were handed
        self.made: dict = {}  # object, or kind of one -> (what was called, its arguments as they were sent)
        self.equal: list = []  # objects with the call that made them, or what they were said to equal
        self.asked: list = []  # methods with their arguments and what they answered

    def note(self, word: str) -> None:
        self.words[word] = self.words.get(word, 0) + 1

    def number(self, value: Any) -> None:
        """Of each number that comes from the candidate: one that is not finite slips through comparisons."""
        if value != value:
            self.note("nan")
        elif value in (math.inf, -math.inf):
            self.note("inf")

    def was_made(self, made: Any, call: tuple) -> None:
        self.made[made._ref] = self.made[made._kind] = call

    def said_equal(self, one: Any, other: Any) -> None:
        call = next((self.made[key] for key in (other._ref, one._ref, one._kind) if key in self.made), None)
        if call is not None and len(self.equal) < MAX_NOTED:
            self.equal.append((one, call))

    def answered(self, method: Any, message: dict, answer: Any) -> None:
        self.note(f"method {method._handle_name}")
        if len(self.asked) < MAX_NOTED:
            self.asked.append((method, message, answer))


def pleased_by_all(candidate: Any, subject: Any, call: tuple) -> bool:
    """Whether an object equals all that the same call makes of other arguments. False where it cannot be told."""
    num_made = 0
    for index in range(NUM_TRIES):
        ref, message = call
        args, kwargs = arguments(candidate, message)
        other_args, other_kwargs = varied(args, index), varied(kwargs, index)
        if (other_args, other_kwargs) == (args, kwargs):
            continue
        try:
            other = candidate.call(ref, tuple(other_args), other_kwargs)
            said = candidate.request({"op": "eq", "ref": subject._ref, "args": [candidate.encode(other)]})
        except candidate.Gone:
            raise
        except Exception:  # noqa: S112  it takes no such arguments
            continue
        if said is not True:
            return False
        num_made += getattr(other, "_ref", None) != subject._ref
    return num_made >= MIN_MADE


def same_to_all(candidate: Any, method: Any, message: dict, answer: Any) -> bool:
    """Whether a method answers other values as it answered those of the check, or hands them back."""
    args, kwargs = arguments(candidate, message)
    wanted = shape(answer, args)
    common = 0
    for _ in range(MIN_COMMON):
        others = [near(arg) for arg in args]
        try:
            said = candidate.call(method._ref, tuple(others), kwargs)
        except candidate.Gone:
            raise
        except Exception:
            return False
        common += shape(said, others) == wanted
    return common == MIN_COMMON


def arguments(candidate: Any, message: dict) -> tuple:
    """Arguments of a call anew, as they were when it was made."""
    args = [candidate.decode(arg) for arg in message["args"]]
    return args, {name: candidate.decode(value) for name, value in message["kwargs"].items()}


def shape(answer: Any, args: list) -> str:
    """An answer with the arguments that it hands back marked."""
    for index, arg in enumerate(args):
        if type(answer) is type(arg) and answer == arg:
            return f"<argument {index}>"
    if isinstance(answer, (list, tuple)):
        return "[" + ",".join(shape(item, args) for item in answer) + "]"
    return f"object {answer._kind}" if hasattr(answer, "_kind") else repr(answer)


def varied(value: Any, index: int) -> Any:
    """The same shape with other plain values: near and far, of both signs, texts with and without their form."""
    if isinstance(value, dict):
        return {key: varied(item, index) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(varied(item, index) for item in value)
    if type(value) is int:
        return RANDOM.randint(-10 * abs(value) - 10 if index % 2 else 1, 10 * abs(value) + 10)
    if type(value) is float:
        return near(value) * (RANDOM.choice((1, -1)) if index % 2 else 1)
    if type(value) is str and index % 2:
        return "".join(map(_letter_like, value))
    return near(value) if isinstance(value, (str, bytes, bytearray, set, frozenset)) else value


def _letter_like(letter: str) -> str:
    for letters in (string.digits, string.ascii_lowercase, string.ascii_uppercase):
        if letter in letters:
            return RANDOM.choice(letters)
    return letter


def near(like: Any) -> Any:
    """A random value of the same type, length and magnitude, which cannot be told from one that is meant."""
    if isinstance(like, str):
        return "".join(RANDOM.choice(string.ascii_letters + string.digits) for _ in like or "x")
    if isinstance(like, (bytes, bytearray)):
        return type(like)(os.urandom(len(like) or 1))
    if type(like) is int:
        return RANDOM.choice((1, -1) if like < 0 else (1,)) * RANDOM.randint(1, 10 * abs(like) + 10)
    if type(like) is float:
        return RANDOM.uniform(0.1, 10.0) * (like if like and math.isfinite(like) else 1.0)
    if isinstance(like, (list, tuple, set, frozenset)):
        return type(like)(map(near, like))
    return decoy(like)


def decoy(like: Any) -> Any:
    """A random value of the same type, which nobody can have meant."""
    number = int.from_bytes(os.urandom(6), "little")
    return {str: hex(number), float: number / 7, bytes: os.urandom(8), tuple: (number,)}.get(type(like), number)
