"""Runs a task's script in a verifier's sandbox, from a process that nothing there can look into.

Called as `call(arguments)` by the sandbox's server; what it returns leaves by the server's own pipe. It hears from the
wrappers of Python how checks and their tests ended, reads the reward when the script is done, and sees what became of
the tests' files.
"""

from __future__ import annotations

# ruff: noqa: PTH103, PTH110, PTH114, PTH118, PTH123, S606
import fcntl
import json
import os
import select
import stat
from typing import Any

WORKSPACE = "/workspace"
WITNESS = "/witness/bin"
FIRST_DESCRIPTOR = 200  # of the pipe: out of the way of what scripts number themselves
MAX_HEARD = 2**20
MAX_READS = 16  # at a time: a flood does not hide that the script has ended
REWARDS = ("reward.txt", "reward.json")
MAX_REWARD_BYTES = 64 * 2**10
MAX_LISTED = 50
LOADED = (".py", ".pyc", ".so", ".pth", ".ini", ".cfg", ".toml", ".sh")  # by later stages, of the tests
STARTERS = (".profile", ".bashrc", ".bash_profile", ".bash_login", ".shrc", ".zshrc", ".pythonrc.py", ".pdbrc",
            "usercustomize.py", "sitecustomize.py")  # fmt: skip
PROGRAMS = ("/usr/local/bin", "/usr/bin")
MAX_PASSED = 1000  # names of tests; of more only the number is told


def call(arguments: dict[str, Any]) -> str:
    """Keys: app, tests, logs, home (folders below the workspace), script, allow (None: logs are not sealed), strict."""
    tests, logs = (f"{WORKSPACE}/{arguments[name]}" for name in ("tests", "logs"))
    home = f"{WORKSPACE}/{arguments['home']}"
    for folder in (home, f"{logs}/verifier"):
        os.makedirs(folder, exist_ok=True)
    for name in arguments["allow"] or ():
        os.close(os.open(f"{logs}/{name}", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644))
    before, at_home = state_of(tests), state_of(home)
    hears, tells = os.pipe()
    pipe = fcntl.fcntl(tells, fcntl.F_DUPFD, FIRST_DESCRIPTOR)
    os.close(tells)
    pid = os.fork()
    if pid == 0:
        try:
            mode = ("sealed" if arguments["allow"] is not None else "") + ("+strict" if arguments["strict"] else "")
            words = [str(pipe), str(os.fstat(pipe).st_ino), mode, *(arguments["allow"] or ())]
            os.environ["RATCHET_WITNESS"] = ":".join(words)
            os.environ["HOME"] = home
            os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
            if os.path.exists(WITNESS):
                os.environ["PATH"] = WITNESS + ":" + os.environ["PATH"]
            os.closerange(3, pipe)
            os.closerange(pipe + 1, 256)
            os.chdir(f"{WORKSPACE}/{arguments['app']}")
            os.execv("/bin/bash", ["bash", f"{tests}/{arguments['script']}"])
        finally:
            os._exit(126)
    os.close(pipe)
    heard = listen(hears, pid)
    passed = sorted({what for how, what in heard if how == "pass"})
    seen = {(how[4:], what) for how, what in heard if how.startswith("see ")}
    others = (line for line in heard if line[0] != "pass" and not line[0].startswith("see "))
    told = sorted(others, key=lambda line: " " in line[0])  # codes come last
    _, status = os.waitpid(pid, 0)
    files = {name: seen_file(f"{logs}/verifier/{name}") for name in REWARDS}
    after = state_of(tests)
    made = sorted(path for path in after if path not in before and "/.pytest_cache" not in path)
    seen |= {("planted", path) for path in made if path.endswith(LOADED)}
    seen |= {("planted", path) for path in state_of(home) if path not in at_home and starts_by_itself(path)}
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    result = {
        "exit_code": code,
        "ends": told[:MAX_LISTED],
        "made": made[:MAX_LISTED],
        "seen": sorted(seen)[:MAX_LISTED],
        "passed": passed if len(passed) <= MAX_PASSED else [],
        "num_passed": len(passed),
        "files": {name: found for name, found in files.items() if found is not None},
        "changed": sorted(path for path in before if before[path] != after.get(path))[:MAX_LISTED],
        "witnessed": os.path.exists(WITNESS),
        "logs": names_below(logs)[:MAX_LISTED],
    }
    return json.dumps(result)


def listen(pipe: int, pid: int) -> list[list[str]]:
    """[how, main program or test] of ends that were not sound and of tests that passed, until the script has ended."""
    os.set_blocking(pipe, False)
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(pipe, select.POLLIN)
    heard = b""
    is_open, is_running = True, True
    while is_running:
        for fd, _ in poll.poll():
            is_running = is_running and fd != ended
        for _ in range(MAX_READS):
            try:
                data = os.read(pipe, 65536) if is_open else b""
            except BlockingIOError:
                break
            if not data:
                if is_open:
                    poll.unregister(pipe)
                is_open = False
                break
            heard += data[: MAX_HEARD - len(heard)]
    os.close(pipe)
    os.close(ended)
    lines = [line.split("\t", 1) for line in heard.decode(errors="replace").splitlines()]
    return [line for line in lines if len(line) == 2]


def seen_file(path: str) -> dict[str, Any] | None:
    """Kind, links, mode and text of a reward file; None where there is none."""
    try:
        seen = os.lstat(path)
    except OSError:
        return None
    found = {"mode": oct(seen.st_mode), "links": seen.st_nlink, "text": None}
    if stat.S_ISREG(seen.st_mode):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            with open(fd, "rb") as file:
                found["text"] = file.read(MAX_REWARD_BYTES).decode(errors="replace")
        except OSError:
            return found
    return found


def state_of(folder: str) -> dict[str, list[int]]:
    """Of every file: its inode and when it was last touched, which no process can set."""
    found = {}
    for place, folders, names in os.walk(folder):
        for name in [*names, *(name for name in folders if os.path.islink(f"{place}/{name}"))]:
            try:
                seen = os.lstat(f"{place}/{name}")
            except OSError:
                continue
            found[f"{place}/{name}"] = [seen.st_ino, seen.st_ctime_ns]
    return found


def starts_by_itself(path: str) -> bool:
    """Whether a shell, Python or a search for programs takes up a file of a home by its name or place."""
    name = path.rpartition("/")[2]
    if name in STARTERS or name.endswith((".pth", ".pyc")) or "/site-packages/" in path:
        return True
    return os.access(path, os.X_OK) and any(os.path.lexists(f"{place}/{name}") for place in PROGRAMS)


def names_below(folder: str) -> list[str]:
    """Files, by their path below a folder."""
    return sorted(os.path.join(place, name)[len(folder) + 1 :] for place, _, names in os.walk(folder) for name in names)
