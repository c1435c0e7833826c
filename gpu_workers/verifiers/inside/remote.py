"""The verifier's side of a candidate's process: modules, functions and objects that live over there."""

from __future__ import annotations

import builtins
import contextlib
import math
import os
import random
import select
import signal
import socket
import string
import subprocess
import sys
import time
from types import ModuleType
from typing import Any, NoReturn

from gpu_workers.verifiers.inside import sdk, server, values
from gpu_workers.verifiers.inside.values import ChannelClosed, decode, encode, receive, send

START = (
    "import os,sys,json\n"
    "for name,text in json.loads(os.pread({texts},1<<22,0)):\n"
    " module=sys.modules[name]=type(sys)(name)\n"
    " exec(compile(text,'<'+name+'>','exec'),module.__dict__)\n"
    "module.main({fd},{root!r})"
)
PARENTS = ("gpu_workers", "gpu_workers.verifiers", "gpu_workers.verifiers.inside")
TAIL = 2000
ADVICE = '; set config isolation to "shared" for such a suite'
TRUST = "; a check of classes sets objects: true, in a suite's config or as an argument of open_candidate"
# Operators and methods that a check hands an expected value to: an object of the candidate could answer as is wished.
BINARY = frozenset(
    "add sub mul truediv floordiv mod pow and_ or_ xor lshift rshift matmul".split()  # noqa: SIM905
)
TELLING = frozenset({"startswith", "endswith", "issubset", "issuperset", "isdisjoint", "count", "index"})
ONE_TO_ONE = frozenset({"add", "sub", "mul", "truediv", "xor"})  # another operand gives another result, unless it is 0
NUM_DECOYS = 4
RANDOM = random.SystemRandom()  # no seed of the tests makes decoys known, none of theirs is moved on
MAX_ITEMS = 10_000  # of an object that are looked through for one


class CandidateGone(Exception):
    """The candidate's process ended, or gave no answer in time. `timed_out` says which."""

    def __init__(self, message: str, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class Tampered(Exception):
    """An object of the candidate claims to be what it cannot be."""


def write_files(files: dict) -> None:
    """Put the candidate's files into the working folder; text or bytes by relative path."""
    for path, data in files.items():
        folder = os.path.dirname(path)  # noqa: PTH120
        if folder:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)


class Candidate:
    """One process with the candidate's modules. Raises CandidateGone from any use once it is dead."""

    def __init__(
        self, timeout_seconds: float = 5.0, deadline: float = float("inf"), root: str = "",
        objects: bool = False, changes_arguments: bool = False,
    ) -> None:  # fmt: skip
        self.objects = objects  # operators of the candidate's objects are believed
        self.changes_arguments = changes_arguments  # also by functions that return something
        self.changed_unasked = False
        self.timeout_seconds = timeout_seconds
        self.deadline = deadline  # monotonic; of all calls together
        self.callbacks: list = []
        self.exceptions: dict = {}
        self.gone: CandidateGone | None = None
        ours, theirs = socket.socketpair()
        self.fd = ours.detach()
        sources = [(name, "") for name in PARENTS]
        sources += [(module.__name__, module.__source__) for module in (values, server)]
        texts = sdk.in_memory(values.json.dumps(sources))
        self.output = sdk.in_memory()
        with theirs:
            code = START.format(texts=texts, fd=theirs.fileno(), root=root or os.getcwd())  # noqa: PTH109
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", code], stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output,
                pass_fds=(theirs.fileno(), texts), start_new_session=True,
            )  # fmt: skip
        os.close(texts)

    def __enter__(self) -> Candidate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.fd >= 0:
            self._kill()
            os.close(self.fd)
            os.close(self.output)
            self.fd = -1

    def module(self, name: str) -> ModuleType:
        """A module of the candidate by its dotted name. Raises what importing it raises."""
        return RemoteModule(name, self.request({"op": "import", "name": name}))

    def said(self) -> str:
        """The end of what the process printed."""
        size = os.fstat(self.output).st_size
        return os.pread(self.output, TAIL, max(0, size - TAIL)).decode("utf-8", "replace")

    def request(self, message: dict, local_args: tuple = ()) -> Any:
        """Ask and wait; callbacks are served meanwhile. `local_args`: the caller's own, to be changed too."""
        if self.gone is not None:
            raise self.gone
        until = min(time.monotonic() + self.timeout_seconds, self.deadline)
        try:
            send(self.fd, message)
            while True:
                reply = receive(self.fd, lambda: self._wait(until))
                if "callback" not in reply:
                    break
                self._call_back(reply)
            if "raise" in reply:
                error = self._exception(reply["raise"])
            else:
                self._copy_back(local_args, reply)
                return self.decode(reply["ok"])
        except CandidateGone as gone:
            self.gone = gone
            self._kill()
            raise
        except (
            ChannelClosed,
            LookupError,
            ValueError,
            TypeError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as e:
            self._kill()
            code = self.process.returncode
            self.gone = CandidateGone(f"the candidate's process ended with code {code} before it answered ({e})")
            raise self.gone from None
        raise error

    def encode(self, value: Any) -> Any:
        return encode(value, self._keep)

    def decode(self, data: Any) -> Any:
        return decode(data, self._resolve)

    def _wait(self, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0 or not select.select([self.fd], [], [], left)[0]:
            raise CandidateGone(f"the candidate did not answer within {self.timeout_seconds:g} s", timed_out=True)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _keep(self, value: Any) -> dict:
        if isinstance(value, (Handle, RemoteModule)):
            return {"t": "ref", "v": object.__getattribute__(value, "_ref")}
        if isinstance(value, type) and value in self.exceptions.values():
            return {"t": "ref", "v": next(ref for ref, kind in self.exceptions.items() if kind is value)}
        if callable(value):
            self.callbacks.append(value)
            return {"t": "callback", "v": len(self.callbacks) - 1}
        raise Uncrossable(f"a {type(value).__name__} of the tests cannot be handed to another process" + ADVICE)

    def _resolve(self, data: dict) -> Any:
        if data["t"] != "ref":
            raise ValueError("unknown kind of value")
        if "exception" in data:
            return self._exception_class(data)
        return Handle(self, int(data["v"]), str(data["kind"]), bool(data["callable"]))

    def _exception_class(self, data: dict) -> Any:
        """A class of ours that stands for the candidate's, so that tests can name and catch it."""
        base = getattr(builtins, str(data["builtin"]), Exception)
        if not (isinstance(base, type) and issubclass(base, (Exception, SystemExit))):
            base = Exception
        for ref, name in reversed(data["exception"]):
            base = self.exceptions.setdefault(int(ref), type(str(name), (base,), {}))
        return base

    def _exception(self, data: dict) -> BaseException:
        kind = self._exception_class(data)
        args = [self.decode(arg) for arg in data["args"]]
        try:
            error: BaseException = kind(*args)
        except TypeError:  # e.g. UnicodeDecodeError, whose arguments did not cross
            error = Exception(f"{kind.__name__}: {args}")
        return error

    def _call_back(self, reply: dict) -> None:
        function = self.callbacks[int(reply["callback"])]
        args = [self.decode(arg) for arg in reply["args"]]
        kwargs = {str(name): self.decode(value) for name, value in reply["kwargs"].items()}
        try:
            answer = {"ok": self.encode(function(*args, **kwargs))}
        except (CandidateGone, Tampered):
            raise
        except Exception as error:
            answer = {"raise": type(error).__name__, "args": [str(error)]}
        send(self.fd, answer)

    def _copy_back(self, local_args: tuple, reply: dict) -> None:
        """What a function did to its lists, dictionaries and sets happens to those of the caller.

        Of one that returns something only where the check says so: its answer may be held against its arguments.
        """
        for local, data in zip(local_args, reply.get("args", ())):  # noqa: B905  Python 3.9
            if type(local) not in server.MUTABLE or data is None:
                continue
            new = self.decode(data)
            if type(new) is not type(local) or new == local:
                continue
            if reply["ok"] is not None and not self.changes_arguments:
                self.changed_unasked = True
                continue
            local.clear()
            (local.extend if isinstance(local, (list, bytearray)) else local.update)(new)

    def call(self, ref: int, args: tuple, kwargs: dict) -> Any:
        encoded = {name: self.encode(value) for name, value in kwargs.items()}
        message = {"op": "call", "ref": ref, "args": [self.encode(arg) for arg in args], "kwargs": encoded}
        return self.request(message, args)


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
        return self._candidate.request({"op": "get", "ref": self._ref, "name": name})

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            args = [self._candidate.encode(value)]
            self._candidate.request({"op": "set", "ref": self._ref, "name": name, "args": args})


class Handle:
    """An object of the candidate. It never equals plain data, whatever it says of itself."""

    def __init__(self, candidate: Candidate, ref: int, kind: str, is_callable: bool) -> None:
        for name, value in (("_candidate", candidate), ("_ref", ref), ("_kind", kind), ("_callable", is_callable)):
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        value = self._candidate.request({"op": "get", "ref": self._ref, "name": name})
        if name in TELLING and isinstance(value, Handle) and not self._candidate.objects:
            return lambda *args: _refuse(self._kind, name, value, args)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        self._operate("set", value, name=name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._candidate.call(self._ref, args, kwargs)

    def _operate(self, op: str, *args: Any, **extra: Any) -> Any:
        encoded = [self._candidate.encode(arg) for arg in args]
        return self._candidate.request({"op": op, "ref": self._ref, "args": encoded, **extra})

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Handle) and other._ref == self._ref:
            return True
        if self._operate("eq", _decoy(3)) is True:
            raise Tampered(f"an object of type {self._kind} says that it equals anything")
        return self._operate("eq", other) if isinstance(other, Handle) else False

    def __ne__(self, other: object) -> Any:
        return not self == other

    def __contains__(self, item: Any) -> bool:
        if not (self._candidate.objects or isinstance(item, Handle)):
            return self._holds(item)
        if type(item) not in (int, str, float, bytes, tuple):
            return bool(self._operate("contains", item))
        decoy = _decoy(item)
        first = ord(os.urandom(1)) % 2
        found = {asked: self._operate("contains", (item, decoy)[asked]) for asked in (first, 1 - first)}
        if found[1] is True:
            raise Tampered(f"an object of type {self._kind} says that it contains anything")
        return found[0] is True

    def _holds(self, item: Any) -> bool:
        """Whether it lists the item, which is looked for here: the object is not told which one."""
        try:
            items = iter(self)
        except TypeError:
            _refuse(self._kind, "in", lambda decoy: self._operate("contains", decoy), (item,))
        for _, found in zip(range(MAX_ITEMS), items):  # noqa: B905  Python 3.9
            if found == item:
                return True
        if next(items, self) is not self:
            raise Uncrossable(f"an object of type {self._kind} lists more than {MAX_ITEMS} items" + TRUST)
        return False

    def __mro_entries__(self, bases: tuple) -> tuple:
        raise Uncrossable("tests cannot subclass what lives in another process" + ADVICE)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Handle) and self._operate("isinstance", instance) is True

    def __hash__(self) -> int:
        return hash(self._operate("hash"))

    def __repr__(self) -> str:
        return f"<{self._kind} of the candidate>"

    def __iter__(self) -> Any:
        return self._operate("iter")

    def __exit__(self, *_: object) -> None:
        self._operate("exit")


def _refuse(kind: str, name: str, ask: Any, operands: tuple) -> NoReturn:
    """Take no word of an object for what would be the check's to decide; it is asked with decoys only.

    Raises Tampered where it says yes to whatever it is asked, else Uncrossable.
    """
    answers = []
    for _ in range(NUM_DECOYS):
        try:
            answers.append(ask(*map(_near, operands)))
        except (CandidateGone, Tampered):
            raise
        except Exception:
            break
    same = len(answers) == NUM_DECOYS and all(type(item) in (bool, int, float) for item in answers)
    same = same and all(item == answers[0] for item in answers)
    if same and (name in ONE_TO_ONE or name == "index" or answers[0]) and operands:
        raise Tampered(f"an object of type {kind} answers {answers[0]!r} to {name} with whatever")
    raise Uncrossable(f"{name} of an object of type {kind} would be its own word for a value of the check" + TRUST)


def _near(like: Any) -> Any:
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
        return type(like)(map(_near, like))
    return _decoy(like)


def _decoy(like: Any) -> Any:
    """A random value of the same type, which nobody can have meant."""
    number = int.from_bytes(os.urandom(6), "little")
    return {str: hex(number), float: number / 7, bytes: os.urandom(8), tuple: (number,)}.get(type(like), number)


def _forward(op: str) -> Any:
    def method(self: Handle, *args: Any) -> Any:
        if op in ("lt", "le", "gt", "ge") and not isinstance(args[0], Handle):
            return NotImplemented  # the object's own word for being more or less than a number counts for nothing
        if op in BINARY and not self._candidate.objects and not isinstance(args[0], Handle):
            _refuse(self._kind, op, lambda decoy: self._operate(op, decoy), args[:1])
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
