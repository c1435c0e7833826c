"""What stands in the verifier's process for modules and objects of a candidate, and what is not believed of them."""

from __future__ import annotations

import operator
import os
from types import ModuleType
from typing import Any, NoReturn

from gpu_workers.verifiers.inside.trust import decoy, near

ADVICE = '; set config isolation to "shared" for such a suite'
TRUST = "; a check of classes sets objects: true, in a suite's config or as an argument of open_candidate"
# Operators and methods that a check hands an expected value to: an object of the candidate could answer as is wished.
BINARY = frozenset(
    "add sub mul truediv floordiv mod pow and_ or_ xor lshift rshift matmul".split()  # noqa: SIM905
)
ORDER = frozenset({"lt", "le", "gt", "ge"})
WITH_ANOTHER = BINARY | ORDER
TELLING = frozenset({"startswith", "endswith", "issubset", "issuperset", "isdisjoint", "count", "index"})
ONE_TO_ONE = frozenset({"add", "sub", "mul", "truediv", "xor"})  # another operand gives another result, unless it is 0
NUM_DECOYS = 4
QUIET = frozenset(
    {"set", "setitem", "isinstance", "issubclass"}
)  # with another object of the candidate they decide nothing
MODULE = "imported module"  # no kind is called so
MAX_ITEMS = 10_000  # of an object that are looked through for one


class CandidateGone(Exception):
    """The candidate's process ended, or gave no answer in time. `timed_out` says which."""

    def __init__(self, message: str, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class Tampered(Exception):
    """An object of the candidate claims to be what it cannot be."""


class TooMuch(Exception):
    """A value of the candidate is larger than any may be."""


class Uncrossable(TypeError):
    """A value of the tests that has no meaning in another process."""


class RemoteModule(ModuleType):
    """A module of the candidate."""

    def __init__(self, name: str, handle: Any) -> None:
        super().__init__(name)
        self.__dict__.update(_candidate=handle._candidate, _ref=handle._ref, __path__=[])

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return self._candidate.request({"op": "names", "ref": self._ref})
        if name.startswith("__"):
            raise AttributeError(name)
        value = self._candidate.request({"op": "get", "ref": self._ref, "name": name})
        return _within_module(value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            args = [self._candidate.encode(value)]
            self._candidate.request({"op": "set", "ref": self._ref, "name": name, "args": args})


class Handle:
    """An object of the candidate. It never equals plain data, whatever it says of itself.

    A container of a class derived from a built-in type (`has_content`) is compared by a copy as that type.
    """

    def __init__(self, candidate: Any, ref: int, kind: str, is_callable: bool, has_content: bool = False) -> None:
        facts = {"_candidate": candidate, "_ref": ref, "_kind": kind, "_callable": is_callable}
        facts.update(_has_content=has_content)
        facts.update(_handle_name="", _handle_of="")  # of which object's kind it is an attribute, called so
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name == "__signature__":
            return self._candidate.signature(self)
        if self._has_content and name in TELLING and not self._candidate.objects:
            return getattr(self._operate("content"), name)
        value = self._candidate.request({"op": "get", "ref": self._ref, "name": name})
        if name in TELLING and isinstance(value, Handle) and not self._candidate.objects:
            return lambda *args: _refuse(self._kind, name, value, args)
        if self._handle_of == MODULE:
            return _within_module(value)
        if isinstance(value, Handle):  # a method, or what lies in a class
            object.__setattr__(value, "_handle_name", name)
            object.__setattr__(value, "_handle_of", self._kind)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        self._operate("set", value, name=name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._candidate.call(self._ref, args, kwargs, self)

    def _operate(self, op: str, *args: Any, **extra: Any) -> Any:
        if args and isinstance(args[0], Handle) and not self._candidate.objects and op not in QUIET:
            said = f"{self._kind} {op} {args[0]._kind}"
            self._candidate.own_word[said] = self._candidate.own_word.get(said, 0) + 1
        encoded = [self._candidate.encode(arg) for arg in args]
        return self._candidate.request({"op": op, "ref": self._ref, "args": encoded, **extra})

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Handle) and other._ref == self._ref:
            return True
        if self._operate("eq", decoy(3)) is True:
            raise Tampered(f"an object of type {self._kind} says that it equals anything")
        if self._has_content and (not isinstance(other, Handle) or other._has_content):
            own, others = self._operate("content"), other._operate("content") if isinstance(other, Handle) else other
            return not isinstance(own, Handle) and not isinstance(others, Handle) and own == others
        if not isinstance(other, Handle):
            return False
        said = self._operate("eq", other)
        if said is True and self._operate("equals_blank") is True:
            raise Tampered(f"an object of type {self._kind} says that it equals any other of its type")
        if said is True:
            self._candidate.trust.said_equal(self, other)
        return said

    def __ne__(self, other: object) -> Any:
        return not self == other

    def __contains__(self, item: Any) -> bool:
        if not (self._candidate.objects or isinstance(item, Handle)):
            return self._holds(item)
        if type(item) not in (int, str, float, bytes, tuple):
            return bool(self._operate("contains", item))
        other = decoy(item)
        first = ord(os.urandom(1)) % 2
        found = {asked: self._operate("contains", (item, other)[asked]) for asked in (first, 1 - first)}
        if found[1] is True:
            raise Tampered(f"an object of type {self._kind} says that it contains anything")
        return found[0] is True

    def _holds(self, item: Any) -> bool:
        """Whether it lists the item, which is looked for here: the object is not told which one."""
        try:
            items = iter(self)
        except TypeError:
            _refuse(self._kind, "in", lambda other: self._operate("contains", other), (item,))
        for _, found in zip(range(MAX_ITEMS), items):  # noqa: B905  Python 3.9
            if found == item:
                return True
        if next(items, self) is not self:
            raise Uncrossable(f"an object of type {self._kind} lists more than {MAX_ITEMS} items" + TRUST)
        return False

    def __mro_entries__(self, bases: tuple) -> tuple:
        raise Uncrossable("tests cannot subclass what lives in another process" + ADVICE)

    def __copy__(self) -> Any:
        return self._operate("copy")

    def __deepcopy__(self, _: dict) -> Any:
        return self._operate("deepcopy")

    def __instancecheck__(self, instance: Any) -> bool:
        if (kind := getattr(type(instance), "_candidate_class", None)) is not None and isinstance(instance, tuple):
            return kind._operate("issubclass", self) is True
        return isinstance(instance, Handle) and self._operate("isinstance", instance) is True

    def __hash__(self) -> int:
        return hash(self._operate("hash"))

    def __repr__(self) -> str:
        return self._operate("repr")

    def __iter__(self) -> Any:
        return self._operate("iter")

    def __exit__(self, *_: object) -> None:
        self._operate("exit")


def _within_module(value: Any) -> Any:
    """What is an attribute of an imported module: another one, or a function or class that is no object's method."""
    if isinstance(value, Handle) and value._kind == "module":
        object.__setattr__(value, "_handle_of", MODULE)
    return value


def _refuse(kind: str, name: str, ask: Any, operands: tuple) -> NoReturn:
    """Take no word of an object for what would be the check's to decide; it is asked with decoys only.

    Raises Tampered where it says yes to whatever it is asked, else Uncrossable.
    """
    answers = []
    for _ in range(NUM_DECOYS):
        try:
            answers.append(ask(*map(near, operands)))
        except (CandidateGone, Tampered):
            raise
        except Exception:
            break
    same = len(answers) == NUM_DECOYS and all(type(item) in (bool, int, float) for item in answers)
    same = same and all(item == answers[0] for item in answers)
    if same and (name in ONE_TO_ONE or name == "index" or answers[0]) and operands:
        raise Tampered(f"an object of type {kind} answers {answers[0]!r} to {name} with whatever")
    raise Uncrossable(f"{name} of an object of type {kind} would be its own word for a value of the check" + TRUST)


def _forward(op: str) -> Any:
    def method(self: Handle, *args: Any) -> Any:
        is_told = op in WITH_ANOTHER and not isinstance(args[0], Handle)  # a value of the check's
        if is_told and self._has_content and (op in ORDER or not self._candidate.objects):
            return getattr(operator, op)(self._operate("content"), args[0])
        if is_told and op in ORDER:
            return NotImplemented  # the object's own word for being more or less than a number counts for nothing
        if is_told and not self._candidate.objects:
            _refuse(self._kind, op, lambda other: self._operate(op, other), args[:1])
        return self._operate(op, *args)

    return method


for _name, _op in {
    "len": "len", "next": "next", "bool": "bool", "str": "str", "reversed": "reversed", "int": "int", "float": "float",
    "enter": "enter", "getitem": "getitem", "setitem": "setitem", "delitem": "delitem", "lt": "lt", "le": "le",
    "gt": "gt", "ge": "ge", "add": "add", "sub": "sub", "mul": "mul", "truediv": "truediv", "floordiv": "floordiv",
    "mod": "mod", "pow": "pow", "and": "and_", "or": "or_", "xor": "xor", "lshift": "lshift", "rshift": "rshift",
    "matmul": "matmul", "neg": "neg", "pos": "pos", "abs": "abs", "invert": "invert",
}.items():  # fmt: skip
    setattr(Handle, f"__{_name}__", _forward(_op))
