"""A helper process that is given orders: one JSON line each, answered with one. It can be killed where it hangs."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from gpu_workers.weights.adapter import InstallError

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "MC_LOG_LEVEL": "ERROR"}


class OrderedProcess:
    """`python -m MODULE`, which runs `serve_orders`."""

    def __init__(self, module: str) -> None:
        self._name = module.rpartition(".")[2]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=ENVIRONMENT | dict(os.environ),
            text=True,
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Its connections close with it: whoever waits for it is told."""
        if self.alive:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    async def order(self, order: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        """Its answer. One that does not come in time ends the process. Raises InstallError."""
        answer = await asyncio.to_thread(self.ask, order, seconds)
        if not answer.get("ok"):
            raise InstallError(str(answer.get("error", f"{self._name} failed")), retryable=True)
        return answer

    def ask(self, order: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Blocks; `ok` is False where it failed, has ended, or took longer and was killed for it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(seconds, give_up)
        timer.start()
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except (OSError, ValueError):
            line = ""
        finally:
            timer.cancel()
        if line:
            return dict(json.loads(line))
        ended = f"did not {order['do']} within {seconds:g} s" if late.is_set() else "ended"
        return {"ok": False, "error": f"the process {self._name} {ended}"}


def serve_orders(do: Callable[[dict[str, Any]], dict[str, Any]], *expected: type[Exception]) -> None:
    """Answer until the pipe is closed; `expected` errors are answers. Only answers go to standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = {"ok": True} | do(json.loads(line))
        except expected as error:
            answer = {"ok": False, "error": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
