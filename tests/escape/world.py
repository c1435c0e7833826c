"""What probes look for, planted on the host by the process that plays the worker."""

import ctypes
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

import msgspec

from gpu_workers.sandboxes.bubblewrap import SANDBOX_UID

PROGRAMS = Path(__file__).parent / "programs"


class World:
    """What probes look for, planted on the host."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ratchet-escape-"))
        self.folder.chmod(0o777)
        self.reached: list[str] = []
        token = secrets.token_hex(8)
        secret = self.folder / "answers.txt"
        secret.write_text("secret " + token)
        secret.chmod(0o644)
        named = Path("/dev/shm", "ratchet-escape-" + token)
        named.write_text("secret")
        os.environ["RATCHET_ESCAPE_SECRET"] = "variable-" + token
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.shm_key = int.from_bytes(secrets.token_bytes(3), "big") + 1
        self.shm = self._shared_memory()
        self.marker = "marker-" + token
        self.victims: list[subprocess.Popen[bytes]] = []
        self.sockets: list[socket.socket] = []
        abstract, path = "ratchet-escape-" + token, str(self.folder / "socket")
        packages = Path(msgspec.__file__).parents[1]
        self.facts = {
            "secret_path": str(secret), "folder": str(self.folder), "project": str(PROGRAMS.parents[2]),
            "packages": str(packages), "env_secret": os.environ["RATCHET_ESCAPE_SECRET"], "marker": self.marker,
            "shm_key": self.shm_key, "shm_name": named.name, "abstract": abstract, "socket_path": path,
            "tcp_port": self._listen(socket.AF_INET, ("0.0.0.0", 0), "tcp"),
            "tcp6_port": self._listen(socket.AF_INET6, ("::1", 0), "tcp6") if has_ipv6() else 0,
            "udp_port": self._listen(socket.AF_INET, ("127.0.0.1", 0), "udp", socket.SOCK_DGRAM),
            "host_address": own_address(),
        }  # fmt: skip
        self._listen(socket.AF_UNIX, "\0" + abstract, "abstract")
        self._listen(socket.AF_UNIX, path, "socket file")
        Path(path).chmod(0o777)

    def _shared_memory(self) -> int:
        self.libc.shmat.restype = ctypes.c_void_p
        number = self.libc.shmget(self.shm_key, 4096, 0o1666)
        place = self.libc.shmat(number, None, 0)
        ctypes.memmove(place, b"secret", 6)
        self.libc.shmdt(ctypes.c_void_p(place))
        return int(number)

    def _listen(self, family, address, name, kind=socket.SOCK_STREAM) -> int:
        """A socket that answers whatever it is told, and remembers that it was reached."""
        made = socket.socket(family, kind)
        made.bind(address)
        self.sockets.append(made)

        def answer() -> None:
            try:
                while True:
                    if kind == socket.SOCK_DGRAM:
                        _, sender = made.recvfrom(100)
                        self.reached.append(name)
                        made.sendto(b"reached", sender)
                        continue
                    client, _ = made.accept()
                    with client:
                        self.reached.append(name)
                        client.sendall(b"reached")
            except OSError:
                return  # closed

        if kind == socket.SOCK_STREAM:
            made.listen()
        threading.Thread(target=answer, daemon=True).start()
        where = made.getsockname()
        return where[1] if family in (socket.AF_INET, socket.AF_INET6) else 0

    def victim(self) -> subprocess.Popen[bytes]:
        """A process of the user that sandboxes run as, found by its marker."""
        user = SANDBOX_UID if os.geteuid() == 0 else None
        made = subprocess.Popen(
            ["/bin/sh", "-c", "sleep 300", self.marker], user=user, env={"VICTIM": "secret"}, cwd="/"
        )
        self.victims.append(made)
        return made

    def close(self) -> None:
        for process in self.victims:
            process.kill()
            process.wait()
        for made in self.sockets:
            made.close()
        self.libc.shmctl(self.shm, 0, None)
        Path("/dev/shm", self.facts["shm_name"]).unlink()
        shutil.rmtree(self.folder)


def target(pid: int) -> dict:
    return {"victim": pid, "victim_uid": SANDBOX_UID if os.geteuid() == 0 else os.geteuid()}


def condition(pid: int) -> list:
    """What another process could have changed of this one: life, nice value, processors, limits."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    living = "living" if fields[0] in "SRD" else fields[0]
    limits = Path(f"/proc/{pid}/limits").read_text()
    return [living, fields[16], sorted(os.sched_getaffinity(pid)), limits]


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
            return True
    except OSError:
        return False


def own_address() -> str:
    """An address of this host other than loopback's; empty where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return ""
        address = probe.getsockname()[0]
    return "" if address.startswith("127.") else address
