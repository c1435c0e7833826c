"""What one container is started with: its name, its bounds, its labels; the same for every engine. Pure but for ids."""

import os
import re
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_workers.contracts.environment import EnvironmentContract, Limits
from gpu_workers.sandboxes.command import SHM_BYTES, TMP_BYTES

IMAGE = re.compile(r"([a-z0-9][\w./:-]*@)?sha256:[0-9a-f]{64}\Z")
USER_ID = 64_717  # of no account
SERVER_BYTES = 64 * 2**20  # the resident server and the interpreter's first pages
SERVER_PROCESSES = 4  # process 1, its helper thread and what an engine's own init may need
SPARE_SECONDS = 120  # a container outlives its episode's own time-outs by this much at most
CPUS = 1
LABEL_SANDBOX = "ratchet.sandbox"
LABEL_OWNER = "ratchet.owner"  # host:pid:start of the worker
LABEL_EXPIRES = "ratchet.expires"  # seconds since 1970

# Runs inside, before anything else: takes the server's modules from the stream, so that they are in no file there.
BOOT = """\
import marshal,os,sys
def take(size):
 data=b""
 while len(data)<size:
  part=os.read(0,size-len(data))
  if not part:os._exit(0)
  data+=part
 return data
modules,config=marshal.loads(take(int.from_bytes(take(4),"little")))
for name,text in modules:
 module=sys.modules[name]=type(sys)(name)
 exec(compile(text,name,"exec",dont_inherit=True),module.__dict__)
module.main(config)
"""
COMMAND = ("python3", "-I", "-S", "-c", BOOT)


@dataclass(frozen=True)
class Launch:
    """One container to start. Sizes in bytes."""

    name: str
    image: str
    contract: EnvironmentContract
    labels: Mapping[str, str]
    binds: Mapping[str, Path] = field(default_factory=dict)  # path inside -> folder or file of the host, read-only

    @property
    def limits(self) -> Limits:
        return self.contract.limits

    @property
    def tmp_bytes(self) -> int:
        return min(TMP_BYTES, self.limits.disk_bytes)

    @property
    def memory_bytes(self) -> int:
        """Of the whole container: its tmpfs count too, and the snapshot is built when only the server is left."""
        limits = self.limits
        files = limits.disk_bytes + self.tmp_bytes + SHM_BYTES
        return max(limits.memory_bytes, limits.disk_bytes) + files + SERVER_BYTES

    @property
    def num_processes(self) -> int:
        return self.limits.num_processes + SERVER_PROCESSES

    @property
    def lifetime_seconds(self) -> int:
        return lifetime_seconds(self.limits)


def new_launch(contract: EnvironmentContract, image: str, binds: Mapping[str, Path]) -> Launch:
    labels = {
        LABEL_SANDBOX: "1",
        LABEL_OWNER: owner(),
        LABEL_EXPIRES: str(int(time.time()) + lifetime_seconds(contract.limits)),
    }
    return Launch(f"ratchet-{secrets.token_hex(8)}", image, contract, labels, binds)


def lifetime_seconds(limits: Limits) -> int:
    """How long a container may exist at most."""
    return int(limits.setup_timeout_seconds + limits.episode_timeout_seconds + limits.verify_timeout_seconds) + (
        SPARE_SECONDS
    )


def owner(pid: int | None = None) -> str:
    """This worker, told apart from another one that later has the same number."""
    pid = os.getpid() if pid is None else pid
    return f"{socket.gethostname()}:{pid}:{_start_of(pid)}"


def is_orphan(labels: Mapping[str, str], now: float) -> bool:
    """Whether nobody can want this container any more: its worker on this host has ended, or its time is over."""
    host, _, rest = labels.get(LABEL_OWNER, "").partition(":")
    pid, _, started = rest.partition(":")
    if host == socket.gethostname() and pid.isdigit() and _start_of(int(pid)) != started:
        return True
    expires = labels.get(LABEL_EXPIRES, "")
    return not expires.isdigit() or now > int(expires)


def _start_of(pid: int) -> str:
    """Start time of a process in clock ticks since boot; 0 when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return "0"
