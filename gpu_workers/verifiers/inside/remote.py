"""The verifier's side of a candidate's process: modules, functions and objects that live over there."""

from __future__ import annotations

import builtins
import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from types import ModuleType
from typing import Any

from gpu_workers.verifiers.inside import sdk, server, values
from gpu_workers.verifiers.inside.handles import ADVICE, CandidateGone, Handle, RemoteModule, Tampered, Uncrossable
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
        self.own_word: dict = {}  # operators between two objects of the candidate -> how often they were believed
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
        self.home = tempfile.mkdtemp(prefix="home-")  # its own: programs of the check have another one, or none
        with theirs:
            code = START.format(texts=texts, fd=theirs.fileno(), root=root or os.getcwd())  # noqa: PTH109
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", code], stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output,
                pass_fds=(theirs.fileno(), texts), start_new_session=True, env={**os.environ, "HOME": self.home},
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
            shutil.rmtree(self.home, ignore_errors=True)
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
