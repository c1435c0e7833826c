"""Values on their way between the verifier's process and the candidate's: plain data by strict type, the rest by name.

A subclass of a built-in type crosses as that type, read with the type's own methods: what it overrides stays behind.
One that says of itself that it equals anything does not cross, so that it can be seen.
"""

from __future__ import annotations

import datetime
import json
import os
import struct
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_MESSAGE = 16 << 20
MAX_DEPTH = 200
EXACT = 1 << 53  # integers up to here need no detour
HEADER = struct.Struct("<I")
TEXT_TYPES: dict[str, Any] = {  # exact types that cross as text: how to write, how to read
    "Decimal": (Decimal, str, Decimal),
    "Fraction": (Fraction, str, Fraction),
    "date": (datetime.date, lambda v: v.isoformat(), datetime.date.fromisoformat),
    "time": (datetime.time, lambda v: v.isoformat(), datetime.time.fromisoformat),
    "datetime": (datetime.datetime, lambda v: v.isoformat(), datetime.datetime.fromisoformat),
    "timedelta": (
        datetime.timedelta,
        lambda v: json.dumps([v.days, v.seconds, v.microseconds]),
        lambda text: datetime.timedelta(*json.loads(text)),
    ),
}
CONTAINERS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
MAPPINGS: dict[str, Any] = {"dict": dict, "Counter": Counter, "OrderedDict": OrderedDict}

PLAIN_TYPES = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict, range, slice,
                 object, type(None))
}  # fmt: skip


class TooDeep(ValueError):
    """A value holds itself, or nests too deep."""


class TooLarge(ValueError):
    """A value of more than MAX_MESSAGE bytes."""


class ChannelClosed(Exception):
    """The other process is gone or does not answer in time."""


def _too_large() -> TooLarge:
    return TooLarge("a value of more than " + str(MAX_MESSAGE) + " bytes does not cross")


def send(fd: int, message: dict) -> None:
    try:
        data = json.dumps(message).encode("ascii")
    except MemoryError:
        raise _too_large() from None
    if len(data) > MAX_MESSAGE:
        raise _too_large()
    data = HEADER.pack(len(data)) + data
    while data:
        try:
            data = data[os.write(fd, data) :]
        except OSError as error:
            raise ChannelClosed(str(error)) from None


def receive(fd: int, wait: Callable[[], None]) -> dict:
    """The next message; `wait` is called before each read and may raise ChannelClosed."""
    (size,) = HEADER.unpack(_exactly(fd, HEADER.size, wait))
    if size > MAX_MESSAGE:
        raise ChannelClosed("a message of " + str(size) + " bytes")
    message = json.loads(_exactly(fd, size, wait))
    if type(message) is not dict:
        raise ChannelClosed("a message that is no object")
    return message


def _exactly(fd: int, size: int, wait: Callable[[], None]) -> bytes:
    parts = []
    while size:
        wait()
        try:
            part = os.read(fd, min(size, 1 << 20))
        except OSError as error:
            raise ChannelClosed(str(error)) from None
        if not part:
            raise ChannelClosed("the process ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def encode(value: Any, keep: Callable[[Any], dict], depth: int = 0, named: Callable[[Any], Any] | None = None) -> Any:
    """JSON of a value; `keep` describes what is no plain data, `named` the class of a named tuple."""
    if depth > MAX_DEPTH:
        raise TooDeep("a value nested more than " + str(MAX_DEPTH) + " deep does not cross")
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind.__module__ != "builtins" and says_yes(value):
        return keep(value)
    if kind is int and -EXACT < value < EXACT:
        return value
    if issubclass(kind, (str, bytes, bytearray, list, tuple, dict)) and kind.__len__(value) > MAX_MESSAGE:
        raise _too_large()
    if issubclass(kind, int):
        return {"t": "int", "v": hex(int.__add__(value, 0))}
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, float):
        return {"t": "float", "v": float.hex(float.__add__(value, 0.0))}
    if issubclass(kind, (bytes, bytearray)):
        base: Any = bytes if issubclass(kind, bytes) else bytearray
        return {"t": base.__name__, "v": base.hex(value)}
    if kind is complex:
        return {"t": "complex", "v": [value.real.hex(), value.imag.hex()]}
    if kind is range or kind is slice:
        return {
            "t": "range" if kind is range else "slice",
            "v": encode([value.start, value.stop, value.step], keep, depth + 1, named),
        }
    if kind is type and (plain := next((name for name, one in PLAIN_TYPES.items() if one is value), "")):
        return {"t": "type", "v": plain}
    for name, (exact, write, _) in TEXT_TYPES.items():
        if kind is exact:
            return {"t": name, "v": write(value)}
    if issubclass(kind, list):
        return [encode(item, keep, depth + 1, named) for item in list.__iter__(value)]
    if named is not None and issubclass(kind, tuple) and kind is not tuple and (described := named(value)) is not None:
        return {**described, "v": [encode(item, keep, depth + 1, named) for item in tuple.__iter__(value)]}
    for name, container in CONTAINERS.items():
        if issubclass(kind, container):
            return {"t": name, "v": [encode(item, keep, depth + 1, named) for item in container.__iter__(value)]}
    if issubclass(kind, dict):
        name = kind.__name__ if kind in (Counter, OrderedDict) else "dict"
        pairs = [[encode(k, keep, depth + 1, named), encode(v, keep, depth + 1, named)] for k, v in dict.items(value)]
        return {"t": name, "v": pairs}
    return keep(value)


def says_yes(value: Any) -> bool:
    """Whether a value equals even an object that was made this moment: such a one is no plain data."""
    try:
        return (value == object()) is True
    except Exception:
        return False


def decode(data: Any, resolve: Callable[[dict], Any], depth: int = 0, number: Callable[[Any], object] = bool) -> Any:
    """The value of a JSON text's data; `resolve` gives what `keep` described. May raise on nonsense.

    `number` is called with every number that has a fraction, in case it is none.
    """
    if depth > MAX_DEPTH:
        raise ValueError("nested too deep")
    if type(data) is list:
        return [decode(item, resolve, depth + 1, number) for item in data]
    if type(data) is not dict:
        return data
    name = str(data["t"])
    inner: Any = data.get("v")
    if name == "type":
        return PLAIN_TYPES[inner]
    if name == "named":
        return resolve(data)([decode(item, resolve, depth + 1, number) for item in inner])
    if name == "int":
        return int(inner, 16)
    if name == "float":
        value = float.fromhex(inner)
        number(value)
        return value
    if name in ("bytes", "bytearray"):
        return (bytes if name == "bytes" else bytearray).fromhex(inner)
    if name == "complex":
        parts = [float.fromhex(part) for part in inner]
        for part in parts:
            number(part)
        return complex(*parts)
    if name in ("range", "slice"):
        return (range if name == "range" else slice)(*decode(inner, resolve, depth + 1, number))
    if name in TEXT_TYPES:
        read = TEXT_TYPES[name][2](inner)
        if name == "Decimal":
            number(float(read) if not read.is_snan() else float("nan"))
        return read
    if name in CONTAINERS:
        return CONTAINERS[name]([decode(item, resolve, depth + 1, number) for item in inner])
    if name in MAPPINGS:
        pairs = [(decode(k, resolve, depth + 1, number), decode(v, resolve, depth + 1, number)) for k, v in inner]
        return MAPPINGS[name](dict(pairs))
    return resolve(data)
