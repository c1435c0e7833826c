"""The verifier's side of a candidate's process: modules, functions and objects that live over there."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import select
import shutil
import signal
import time
from types import ModuleType
from typing import Any, ClassVar

from gpu_workers.verifiers.inside import copies, pipes, server, trust
from gpu_workers.verifiers.inside.clock import WATCH
from gpu_workers.verifiers.inside.handles import (
    ADVICE,
    CandidateGone,
    Handle,
    RemoteModule,
    Tampered,
    TooMuch,
    Uncrossable,
)
from gpu_workers.verifiers.inside.process import is_busy, start
from gpu_workers.verifiers.inside.values import ChannelClosed, decode, encode, receive, send

TAIL = 2000
SETTLE_SECONDS = 1.0
FILE_METHODS = ("read", "readline", "readlines", "write", "writelines", "seek", "tell", "flush", "getvalue")
MAX_DRAWN = 1000  # items of an iterator that are computed at once


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

    Gone = CandidateGone
    started: ClassVar[list] = []  # all of this process, in order

    def __init__(
        self, timeout_seconds: float = 5.0, deadline: float = float("inf"), root: str = "",
        objects: bool = False, changes_arguments: bool = False,
    ) -> None:  # fmt: skip
        self.objects = objects  # operators of the candidate's objects are believed
        self.changes_arguments = changes_arguments  # also by functions that return something
        self.changed_unasked = False
        self.trust = trust.Trust()
        self.depth = 0  # requests under way: one a callback made lies in another
        self.broken: Exception | None = None  # an assertion of a callback, whatever the candidate makes of it
        self.num_returned, self.num_raised = 0, 0  # calls and operators
        self.own_word: dict = {}  # operators between two objects of the candidate -> how often they were believed
        self.timeout_seconds = timeout_seconds
        self.deadline = deadline  # monotonic; of all calls together
        self.callbacks: list = []
        self.exceptions: dict = {}
        self.objects_by_number: dict = {}  # what cannot be called has one stand-in each, so that `is` says what it says
        self.named: dict = {}  # classes of named tuples by number
        self.gone: CandidateGone | None = None
        self.output = pipes.Output(keep_last=True)
        self.process, self.fd, self.reports, self.home = start(root, self.output)
        self.started.append(self)

    def __enter__(self) -> Candidate:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.settle()
        finally:
            self.close()

    def settle(self) -> None:
        """Ask once more what was believed. Raises Tampered, CandidateGone."""
        if self.fd < 0 or self.gone is not None or not (self.trust.equal or self.trust.asked):
            return
        self.request({"op": "alive"})
        equal, asked, noted = self.trust.equal, self.trust.asked, dict(self.trust.words)
        self.trust.equal, self.trust.asked = [], []
        self.timeout_seconds = min(self.timeout_seconds, SETTLE_SECONDS)
        self.deadline = min(self.deadline, time.monotonic() + 3 * SETTLE_SECONDS)
        try:
            for method, message, answer in asked:
                if answer is not None and trust.same_to_all(self, method, message, answer):
                    self.trust.constant.add(f"method {method._handle_name}")
            for subject, call in equal:
                if trust.pleased_by_all(self, subject, call):
                    raise Tampered(f"an object of type {subject._kind} says that it equals others of its type")
        except CandidateGone:
            pass  # random arguments may be too much for honest code
        finally:
            self.trust.words = noted  # what the last questions brought up says nothing

    def close(self) -> None:
        if self.fd >= 0:
            lives = self.gone is None
            self.output.drain(self.deadline, lambda: is_busy(self.process.pid))
            if self.reports.close() and lives and not select.select([self.fd], [], [], 0)[0]:
                pipes.note("blinded", "the watch's descriptor was closed")
            self._kill()
            os.close(self.fd)
            self.output.close()
            shutil.rmtree(self.home, ignore_errors=True)
            self.fd = -1

    def module(self, name: str) -> ModuleType:
        """A module of the candidate by its dotted name. Raises what importing it raises."""
        return RemoteModule(name, self.request({"op": "import", "name": name}))

    def said(self) -> str:
        """The end of what the process printed."""
        self.output.read_all()
        return self.output.text(TAIL)

    def request(self, message: dict, local_args: tuple = (), may_stop: bool = False) -> Any:
        """Ask and wait; callbacks are served meanwhile. `local_args`: the caller's own, to be changed too.

        `may_stop`: what is asked belongs to an iterator, which ends by an exception.
        """
        if self.gone is not None:
            raise self.gone
        until = min(time.monotonic() + self.timeout_seconds, self.deadline)
        self.depth += 1
        try:
            send(self.fd, message)
            while True:
                reply = receive(self.fd, lambda: self._wait(until))
                if "callback" not in reply:
                    break
                self._call_back(reply)
            if "too_large" in reply:
                pipes.note("large", str(reply["too_large"]))
                raise TooMuch(str(reply["too_large"]))
            has_raised = "raise" in reply
            if message["op"] not in ("import", "get", "set", "names", "alive"):
                self.num_raised += has_raised
                self.num_returned += not has_raised
            if has_raised:
                error = self._exception(reply["raise"], may_stop or message["op"] in ("next", "anext"))
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
        finally:
            self.depth -= 1
            if not self.depth and self.broken is not None:
                error, self.broken = self.broken, None
                raise error
        raise error

    def encode(self, value: Any) -> Any:
        return encode(value, self._keep, named=self._named)

    def decode(self, data: Any) -> Any:
        return decode(data, self._resolve, number=self.trust.number)

    def _wait(self, until: float) -> None:
        """Until there is something to read; what is printed meanwhile is taken."""
        while True:
            left = until - time.monotonic()
            wanted = [self.fd, self.output.fd] if self.output.is_open else [self.fd]
            ready = select.select(wanted, [], [], left)[0] if left > 0 else []
            if self.output.fd in ready:
                self.output.read()
                if self.output.is_flood:
                    pipes.note("flood", f"more than {pipes.FLOOD} bytes of output")
                    raise CandidateGone(f"the candidate printed more than {pipes.FLOOD} bytes")
            if self.fd in ready:
                return
            if not ready:
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
        if isinstance(value, io.IOBase):
            methods = [name for name in FILE_METHODS if hasattr(value, name)]
            return {"t": "file", "v": {name: self._keep(getattr(value, name))["v"] for name in methods}}
        if callable(value):
            self.callbacks.append(value)
            return {"t": "callback", "v": len(self.callbacks) - 1}
        raise Uncrossable(f"a {type(value).__name__} of the tests cannot be handed to another process" + ADVICE)

    def _resolve(self, data: dict) -> Any:
        if data["t"] == "named":
            number = int(data["class"])
            if number not in self.named:
                kind = Handle(self, number, "type", True)
                self.named[number] = copies.named_class(str(data["name"]), data["fields"], kind)
            return lambda items: copies.named_tuple(self.named[number], items)
        if data["t"] != "ref":
            raise ValueError("unknown kind of value")
        if "exception" in data:
            return copies.exception_class(data, self.exceptions)
        number, is_callable = int(data["v"]), bool(data["callable"])
        made = Handle(self, number, str(data["kind"]), is_callable, data.get("has_content") is True)
        return made if is_callable else self.objects_by_number.setdefault(number, made)

    def _named(self, value: Any) -> Any:
        """How a named tuple that the candidate made is named over there; None of another tuple."""
        kind = getattr(type(value), "_candidate_class", None)
        return None if kind is None else {"t": "named", "class": kind._ref}

    def _exception(self, data: dict, may_stop: bool) -> BaseException:
        kind = copies.exception_class(data, self.exceptions)
        args = [self.decode(arg) for arg in data["args"]]
        attributes = {str(name): self.decode(value) for name, value in data["attributes"].items()}
        error = copies.exception(kind, args, attributes, data.get("said"))
        return copies.Stopped(error) if isinstance(error, copies.NOT_FROM_A_CALL) and not may_stop else error

    def signature(self, function: Handle) -> Any:
        return copies.signature(self.request({"op": "signature", "ref": function._ref}))

    def _call_back(self, reply: dict) -> None:
        if self.broken is not None:
            send(self.fd, {"raise": "AssertionError", "args": []})
            return
        function = self.callbacks[int(reply["callback"])]
        args = [self.decode(arg) for arg in reply["args"]]
        kwargs = {str(name): self.decode(value) for name, value in reply["kwargs"].items()}
        try:
            answer = {"ok": self.encode(function(*args, **kwargs))}
        except (CandidateGone, Tampered):
            raise
        except AssertionError as error:
            self.broken = error  # the check's own verdict: not for the candidate to read, nor to catch
            answer = {"raise": "AssertionError", "args": []}
        except Exception as error:
            answer = self._raised(error)
        send(self.fd, answer)

    def _raised(self, error: Exception) -> dict:
        """An exception of a function of the tests, for the candidate: its own class, or the nearest that all know."""
        try:
            args = [encode(arg, _refuse_word) for arg in error.args]
        except ValueError:
            args = [str(error)]
        ref = next((ref for ref, kind in self.exceptions.items() if kind is type(error)), None)
        if ref is not None:
            return {"ref": ref, "args": args}
        kinds = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
        return {"raise": next(kinds), "args": args}

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

    def call(self, ref: int, args: tuple, kwargs: dict, function: Any = None) -> Any:
        """What a function answers. `function`: its handle, where the check itself calls it."""
        encoded = {name: self.encode(value) for name, value in kwargs.items()}
        message = {"op": "call", "ref": ref, "args": [self.encode(arg) for arg in args], "kwargs": encoded}
        is_timed = WATCH.read and function is not None
        may_stop = function is not None and function._handle_name in copies.STOPPING
        answer = self.request(message, args, may_stop)
        if function is None:
            return answer
        in_class = function._handle_of == "type"
        if isinstance(answer, Handle) and (in_class or not function._handle_name) and "callback" not in str(message):
            self.trust.was_made(answer, (ref, message))
        if function._handle_name and not self.objects and not all(map(_is_handle, (*args, *kwargs.values()))):
            self.trust.answered(function, message, answer)
        return self._in_time(answer) if is_timed else answer

    def _in_time(self, answer: Any) -> Any:
        """Where the check measures time, what comes from an iterator is computed within the call that gave it."""
        if not isinstance(answer, Handle) or answer._callable:
            return answer
        drawn = self.request({"op": "draw", "ref": answer._ref, "args": [MAX_DRAWN]})
        if type(drawn) is list and len(drawn) == 2 and type(drawn[0]) is list and type(drawn[1]) is bool:
            items, is_done = drawn
            if is_done or len(items) == MAX_DRAWN:
                return iter(items) if is_done else itertools.chain(items, answer)
        if not self.objects:
            self.trust.note("object in a test that measures time")
        return answer


def close_all() -> None:
    """End what a check left running, and take what was seen of it."""
    for one in Candidate.started:
        one.close()


def rests_on() -> dict:
    """What this process took from candidates beside plain, finite values: times, negative where it was a constant."""
    words: dict = {}
    for one in Candidate.started:
        for word, times in one.trust.words.items():
            words[word] = words.get(word, 0) + times
    constant = {word for one in Candidate.started for word in one.trust.constant}
    return {word: -times if word in constant else times for word, times in words.items()}


def _refuse_word(value: Any) -> dict:
    raise ValueError(f"a {type(value).__name__} does not cross")


def _is_handle(value: Any) -> bool:
    return isinstance(value, Handle)
