"""The candidate's process: imports its modules and does what the verifier's asks. It knows no expected value."""

from __future__ import annotations

import builtins
import importlib
import itertools
import operator
import os
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

from gpu_workers.verifiers.inside import audit
from gpu_workers.verifiers.inside.values import (
    PLAIN_TYPES,
    ChannelClosed,
    TooDeep,
    TooLarge,
    decode,
    encode,
    receive,
    send,
)

OPERATIONS = {
    name: getattr(operator, name)
    for name in (
        "getitem", "setitem", "delitem", "contains", "eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv",
        "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift", "matmul", "neg", "pos", "abs", "invert",
    )
}  # fmt: skip

MAX_ATTRIBUTES = 50  # of an exception
MAX_SAID = 10_000  # characters
OF_EXCEPTIONS = frozenset(dir(Exception))


def equals_blank(value: Any) -> bool:
    """Whether an object with a state of its own equals one of its type that was made without any."""
    kind: Any = type(value)
    slots = [name for part in kind.__mro__ for name in part.__dict__.get("__slots__", ()) if hasattr(value, name)]
    if not slots and all(hasattr(kind, name) for name in getattr(value, "__dict__", ())):
        return False
    try:
        return (value == kind.__new__(kind)) is True
    except Exception:
        return False


def draw(value: Any, limit: int) -> Any:
    """[items, whether these are all] of an iterator, None of anything else."""
    if not isinstance(value, Iterator):
        return None
    items = list(itertools.islice(value, limit))
    return [items, len(items) < limit]


OPERATIONS.update(
    {"draw": draw, "len": len, "iter": iter, "next": next, "bool": bool, "str": str, "repr": repr, "hash": hash,
     "reversed": reversed, "int": int, "float": float, "equals_blank": equals_blank,
     "content": lambda value: value, "isinstance": lambda kind, value: isinstance(value, kind),
     "enter": lambda v: type(v).__enter__(v), "exit": lambda v: type(v).__exit__(v, None, None, None)}
)  # fmt: skip


class Server:
    """Answers requests one after another; objects that do not cross are kept here under a number."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.kept: list = []
        self.numbers: dict = {}

    def serve(self) -> None:
        while True:
            try:
                request = receive(self.fd, lambda: None)
            except ChannelClosed:
                os._exit(0)
            self.answer(request)

    def answer(self, request: dict) -> None:
        try:
            args = [self.decode(item) for item in request.get("args", [])]
            kwargs = {name: self.decode(item) for name, item in request.get("kwargs", {}).items()}
            value = self.perform(request, args, kwargs)
            stays = request["op"] == "call" and is_own_container(self.kept[request["ref"]], value)
            reply: dict = {"ok": {**self.keep(value), "has_content": True} if stays else self.encode(value)}
            if request["op"] == "call":  # what a function did to its arguments is part of what it did
                reply["args"] = [self.encode(arg) if type(arg) in MUTABLE else None for arg in args]
            send(self.fd, reply)
        except ChannelClosed:
            os._exit(0)
        except TooLarge as error:
            send(self.fd, {"too_large": str(error)})
        except BaseException as error:
            send(self.fd, {"raise": self.describe(error)})

    def perform(self, request: dict, args: list, kwargs: dict) -> Any:
        kind = request["op"]
        if kind == "import":
            return importlib.import_module(request["name"])
        if kind == "alive":
            return True
        target = self.kept[request["ref"]]
        if kind == "get":
            return getattr(target, request["name"])
        if kind == "set":
            return setattr(target, request["name"], args[0])
        if kind == "names":
            names = getattr(target, "__all__", None) or [name for name in vars(target) if not name.startswith("_")]
            return [str(name) for name in names]
        if kind == "call":
            return target(*args, **kwargs)
        return OPERATIONS[kind](target, *args)

    def encode(self, value: Any) -> Any:
        try:
            return encode(value, self.keep, named=self.named)
        except TooDeep:  # it holds itself: it stays here
            return self.keep(value)
        except MemoryError:
            raise TooLarge("a value that this process has no memory to hand over") from None

    def named(self, value: Any) -> Any:
        """What a named tuple's class is called, its fields and number; None of another tuple."""
        kind: Any = type(value)
        fields = getattr(kind, "_fields", None)
        if type(fields) is not tuple or len(fields) != tuple.__len__(value) or not all(map(is_field, fields)):
            return None
        if any(is_method(name) and not is_plain(item) for name, item in zip(fields, tuple.__iter__(value))):  # noqa: B905
            return None
        return {"t": "named", "name": kind.__name__, "fields": list(fields), "class": self.keep(kind)["v"]}

    def decode(self, data: Any) -> Any:
        return decode(data, self.resolve)

    def keep(self, value: Any) -> dict:
        number = self.numbers.get(id(value))
        if number is None:
            number = self.numbers[id(value)] = len(self.kept)
            self.kept.append(value)
        described = {"t": "ref", "v": number, "kind": type(value).__name__, "callable": callable(value)}
        if isinstance(value, type) and issubclass(value, BaseException):
            return {**described, **self.lineage(value)}
        return described

    def lineage(self, kind: type) -> dict:
        """An exception's own classes from the most special on, then the first built-in one."""
        own: list = []
        for part in kind.__mro__:
            if getattr(builtins, part.__name__, None) is part:
                return {"exception": own, "builtin": part.__name__}
            number = self.numbers.setdefault(id(part), len(self.kept))
            if number == len(self.kept):
                self.kept.append(part)
            own.append([number, part.__name__])
        return {"exception": own, "builtin": "Exception"}

    def describe(self, error: BaseException) -> dict:
        def text_of(value: Any) -> Any:
            return repr(value)[:500]

        try:
            args = [encode(arg, text_of) for arg in error.args]
        except Exception:
            args = []
        said = {**self.lineage(type(error)), "args": args, "attributes": {}}
        try:
            if not hasattr(builtins, type(error).__name__) and type(error).__str__ is not BaseException.__str__:
                said["said"] = str(error)[:MAX_SAID]
            for name in [name for name in dir(error) if name not in OF_EXCEPTIONS and name[:1] != "_"][:MAX_ATTRIBUTES]:
                value = getattr(error, name)
                if not callable(value):
                    said["attributes"][name] = self.encode(value)
        except Exception:
            return said
        return said

    def resolve(self, data: dict) -> Any:
        if data["t"] == "ref":
            return self.kept[data["v"]]
        if data["t"] == "named":
            return lambda items: tuple.__new__(self.kept[data["class"]], items)
        if data["t"] == "file":
            return File({name: Callback(self, number) for name, number in data["v"].items()})
        return Callback(self, data["v"])


class Callback:
    """A function of the verifier's process, handed over as an argument."""

    def __init__(self, server: Server, number: int) -> None:
        self.server, self.number = server, number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        server = self.server
        encoded = {name: server.encode(value) for name, value in kwargs.items()}
        send(server.fd, {"callback": self.number, "args": [server.encode(arg) for arg in args], "kwargs": encoded})
        while True:
            message = receive(server.fd, lambda: None)
            if "op" not in message:
                break
            server.answer(message)  # the function over there uses the candidate in turn
        if "ref" in message:
            raise server.kept[message["ref"]](*map(server.decode, message["args"]))
        if "raise" in message:
            raise getattr(builtins, message["raise"], RuntimeError)(*map(server.decode, message["args"]))
        return server.decode(message["ok"])


class File:
    """An open file of the verifier's process, handed over as an argument: its methods run there."""

    def __init__(self, methods: dict) -> None:
        vars(self).update(methods)

    def __iter__(self) -> Any:
        return iter(vars(self)["readline"], type(vars(self)["read"](0))())

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def is_field(name: Any) -> bool:
    """Whether a name is one of a named tuple's fields that no method of tuples is called by."""
    return type(name) is str and name.isidentifier() and name[:1] != "_" and not hasattr(tuple, name)


def is_method(name: str) -> bool:
    """Whether plain data has a method or attribute of this name, which a check may ask a result for."""
    return any(hasattr(kind, name) for kind in PLAIN_TYPES.values())


def is_plain(value: Any) -> bool:
    return type(value) in PLAIN_TYPES.values()


def is_own_container(kind: Any, value: Any) -> bool:
    """Whether a class was called for a container that has more than its built-in type: a copy would lack it."""
    if kind is not type(value) or not issubclass(kind, (list, dict, set, deque)):
        return False
    base = next(part for part in kind.__mro__ if part.__module__ in ("builtins", "collections"))
    own = (name for part in kind.__mro__ for name in vars(part) if name[:1] != "_")
    return kind is not base and any(not hasattr(base, name) for name in own)


def fields_of(value: Any) -> Any:
    """Names of a dataclass' fields, None of anything else."""
    import dataclasses  # of a class that has some it is there already

    return [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else None


def by_dataclasses(name: str) -> Any:
    def perform(value: Any, *changes: dict) -> Any:
        import dataclasses

        return getattr(dataclasses, name)(value, **(changes[0] if changes else {}))

    return perform


def by_copy(name: str) -> Any:
    def perform(value: Any) -> Any:
        import copy

        return getattr(copy, name)(value)

    return perform


def signature(value: Any) -> Any:
    """[name, kind, defaults: none or one] of each parameter; None where it cannot be told."""
    import inspect

    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return None
    return [[p.name, p.kind.name, [] if p.default is p.empty else [p.default]] for p in parameters]


OPERATIONS.update({name: by_dataclasses(name) for name in ("asdict", "astuple", "is_dataclass", "replace")})
OPERATIONS.update({name: by_copy(name) for name in ("copy", "deepcopy")})
OPERATIONS.update({"fields": fields_of, "signature": signature, "issubclass": issubclass})
MUTABLE = (list, dict, set, bytearray)


def main(fd: int, folder: str, watch: int, shown: list) -> None:
    sys.path.insert(0, folder)
    audit.watch(watch, os.getcwd(), shown)  # noqa: PTH109
    Server(fd).serve()
