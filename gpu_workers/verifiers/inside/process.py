"""How a candidate's process begins: its modules from memory, its channel, its output, the watch over it, its home."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpu_workers.verifiers.inside import audit, pipes, sdk, server, values

START = (
    "import os,sys,json\n"
    "for name,text in json.loads(os.pread({texts},1<<22,0)):\n"
    " module=sys.modules[name]=type(sys)(name)\n"
    " exec(compile(text,'<'+name+'>','exec'),module.__dict__)\n"
    "module.main({fd},{root!r},{watch},{shown!r})"
)
PARENTS = ("gpu_workers", "gpu_workers.verifiers", "gpu_workers.verifiers.inside")


def start(root: str, output: pipes.Output) -> tuple[Any, int, pipes.Reports, str]:
    """The process, the descriptor of its channel, what its watch reports, and its home, which is to be removed."""
    ours, theirs = socket.socketpair()
    sources = [(name, "") for name in PARENTS]
    sources += [(module.__name__, vars(module)["__source__"]) for module in (values, audit, server)]
    texts = sdk.in_memory(values.json.dumps(sources))
    reports = pipes.Reports(above=theirs.fileno())
    home = tempfile.mkdtemp(prefix="home-")  # its own: programs of the check have another one, or none
    with theirs:
        code = START.format(
            texts=texts, fd=theirs.fileno(), root=root or os.getcwd(),  # noqa: PTH109
            watch=reports.theirs, shown=pipes.shown(),
        )  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", code], stdin=subprocess.DEVNULL, stdout=output.theirs, stderr=output.theirs,
            pass_fds=(theirs.fileno(), texts, reports.theirs), start_new_session=True,
            env={**os.environ, "HOME": home},
        )  # fmt: skip
    os.close(texts)
    output.given()
    reports.given()
    return process, ours.detach(), reports, home


def is_busy(pid: int) -> bool:
    """Whether a thread of the process runs or is ready to, as far as the system tells."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks]
    except (OSError, IndexError):
        return False
    return "R" in states
