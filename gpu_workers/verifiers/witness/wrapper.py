"""Stands before Python in a verifier's sandbox: an exit code 0 leaves here only if the check itself came to its end.

Runs as `python -I -S wrapper.py REAL WORDS…`. A main program of the policy's own (a command line tool) gets the real
interpreter and says what it says. Any other is run by a child through the bootstrap, which tells over a private pipe,
with a nonce, how the main program ended. A child that is gone without a word, by os._exit, exec or from C, or that the
policy's code has ended, has not passed: the exit code is UNSOUND and the overseer hears of it.
"""

from __future__ import annotations

# Every start of Python pays for what is imported here: no ctypes, no pathlib, no subprocess, no signal.
# ruff: noqa: PTH109, PTH110, PTH113, PTH120, PTH208, S606
import _signal  # type: ignore[import-not-found]
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

FOLDER = "/witness"  # of these programs
POLICY = "/workspace/app"  # the candidate's files
LOGS, TESTS = "/workspace/logs", "/workspace/tests"
VARIABLE = "RATCHET_WITNESS"  # descriptor:inode of the overseer's pipe, then the seal
UNSOUND = 87  # exit code of a check that ended well, but not by itself
TAKES_WORD = "WX"
PLAIN = "bBdEIOPqRsSuv"
OWN_PRINTERS = ("-h", "-V", "-?", "-i", "-x")
FORWARDED = (1, 2, 3, 10, 12, 15)  # HUP, INT, QUIT, USR1, USR2, TERM
TEST_RUNNERS = ("pytest", "_pytest", "pluggy")
SPAWNED = ("from multiprocessing.", "from joblib.externals.loky.")  # helpers of the library; nobody asks their code
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # Landlock's calls, the same number on every architecture
SEALED_RIGHTS = (1 << 1) | sum(1 << bit for bit in range(4, 15))  # write, remove, make, refer, truncate
MAKE_BLOCK, SCOPE_SIGNAL, WRITE, TRUNCATE, READ = 1 << 11, 1 << 1, 1 << 1, 1 << 14, 1 << 2
ABI_TRUNCATE, ABI_SCOPES = 3, 6
MAX_NAME = 200
MAX_RELAYED = 100
MAX_HEARD = 2**20
NO_INPUT = ("PWD", "OLDPWD", "HOME", "PATH", "PYTHONPATH", VARIABLE)  # variables that name no input of a program


class Seal:
    """What Pythons may not write: of the logs all but the named files (None: nothing is sealed); strict: the tests."""

    def __init__(self, logs: list[str] | None, is_strict: bool) -> None:
        self.logs, self.is_strict = logs, is_strict


class Start:
    """What a command line of Python asks for. `kind`: script, module, text, stdin; empty: Python itself answers."""

    def __init__(self, words: list[str]) -> None:
        self.options: list[str] = []
        self.kind, self.main, self.rest = "stdin", "", []  # type: str, str, list[str]
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            if word == "-":
                self.main, self.rest = "-", words[at:]
                return
            if not word.startswith("-") or word == "--":
                if word == "--":
                    word, at = (words[at] if at < len(words) else ""), at + 1
                self.kind, self.main, self.rest = ("script" if word else ""), word, words[at:]
                return
            if word.startswith("--"):
                if word != "--check-hash-based-pycs":
                    self.kind = ""
                    return
                self.options += [word, *words[at : at + 1]]
                at += 1
                continue
            for place, letter in enumerate(word[1:], start=1):
                if letter in "cm" or letter in TAKES_WORD:
                    value = word[place + 1 :]
                    if not value and at < len(words):
                        value, at = words[at], at + 1
                    elif not value:  # Python says so itself
                        self.kind = ""
                        return
                    if letter in TAKES_WORD:
                        self.options += ["-" + letter, value]
                        break
                    self.kind, self.main, self.rest = ("text" if letter == "c" else "module"), value, words[at:]
                    return
                if letter not in PLAIN:  # it prints something, or becomes interactive
                    self.kind = ""
                    return
                self.options.append("-" + letter)

    def is_of_policy(self) -> bool:
        """Whether the main program is a file of the candidate's folder."""
        if self.kind == "script":
            return within(self.main)
        if self.kind != "module":
            return False
        first = self.main.partition(".")[0]
        if first in sys.stdlib_module_names or first in TEST_RUNNERS:
            return False
        places = [os.getcwd(), *os.environ.get("PYTHONPATH", "").split(":")]
        names = (first, first + ".py")
        return any(within(place) and any(os.path.exists(f"{place}/{name}") for name in names) for place in places)

    def stays_unseen(self) -> bool:
        """Whether Python itself answers, or a library's helper runs: no check."""
        if self.kind == "text":
            return self.main.startswith(SPAWNED)
        return not self.kind or (self.kind == "script" and not os.path.exists(self.main))


def within(path: str) -> bool:
    real, root = os.path.realpath(path), os.path.realpath(POLICY)
    return real == root or real.startswith(root + "/")


def main(real: str, words: list[str]) -> int:
    start = Start(words)
    seal, pipe = read_variable()
    if start.is_of_policy():
        given = given_to(start)
        enter_domain(seal, given)
        be_plain(real, words, start, pipe, given)
    if start.stays_unseen() or (start.kind == "stdin" and os.isatty(0)):
        os.execv(real, [real, *words])
    gift, gives = os.pipe()
    hears, tells = os.pipe()
    nonce = os.urandom(16).hex().encode()
    os.write(gives, nonce)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            _call("prctl", 1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL: it goes with this process
            if os.getppid() != parent:
                os._exit(UNSOUND)
            os.close(gives)
            os.close(hears)
            os.set_inheritable(gift, True)
            os.set_inheritable(tells, True)
            enter_domain(seal)
            numbers = [str(gift), str(tells)]
            words = [*start.options, f"{FOLDER}/bootstrap.py", *numbers, start.kind, start.main, *start.rest]
            os.execv(real, [real, *words])
        finally:
            os._exit(126)
    for number in FORWARDED:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, lambda got, _: forward(child, got))
    os.close(gift)
    os.close(tells)
    _, status = os.waitpid(child, 0)
    for number in FORWARDED:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, _signal.SIG_DFL)
    what = (start.main or "stdin")[:MAX_NAME]
    said_in_all = heard(hears, nonce)
    relay(pipe, [line for line in said_in_all if " " in line])
    if os.WIFSIGNALED(status):
        tell(pipe, f"signal {os.WTERMSIG(status)}\t{what!r}")
        os.kill(os.getpid(), os.WTERMSIG(status))
    code = os.WEXITSTATUS(status)
    ends = [line for line in said_in_all if " " not in line]
    said = next((end for end in ends if end != "0"), "" if ends else "gone")
    if code == 0 and said:
        code = int(said) if said.isdigit() else UNSOUND
        tell(pipe, f"{'code' if said.isdigit() else said}\t{what!r}")
    elif code != 0:
        tell(pipe, f"left {code}\t{what!r}")
    return code


def forward(child: int, number: int) -> None:
    try:
        os.kill(child, number)
    except OSError:  # it has ended by the same signal
        return


def heard(pipe: int, nonce: bytes) -> list[str]:
    """What the bootstrap said: each end once, a code or `exit` for one by the policy's code; `see …`, `types …`."""
    os.set_blocking(pipe, False)
    data = b""
    try:
        while len(data) < MAX_HEARD and (more := os.read(pipe, 65536)):
            data += more
    except BlockingIOError:
        pass
    lines = [line[len(nonce) :] for line in data.split(b"\n") if line.startswith(nonce)]
    return [line.decode(errors="replace") for line in lines]


def relay(pipe: int, lines: list[str]) -> None:
    """Pass on what the watch saw. The built-in types are compared here, where no code of the policy has run."""
    states = [line for line in lines if line.startswith("types ")]
    for line in lines[:MAX_RELAYED]:
        if line.startswith("see "):
            kind, _, what = line[4:].partition(" ")
            tell(pipe, f"see {kind}\t{what}")
    if len(set(states)) > 1:
        tell(pipe, "see replaced\tthe built-in types' own operators")


def read_variable() -> tuple[Seal, int]:
    """The seal and the overseer's pipe, or -1."""
    parts = os.environ.get(VARIABLE, "").split(":")
    try:
        pipe, inode = int(parts[0]), int(parts[1])
        if os.fstat(pipe).st_ino != inode:
            pipe = -1
    except (ValueError, IndexError, OSError):
        pipe = -1
    mode = parts[2] if len(parts) > 2 else ""
    return Seal(parts[3:] if "sealed" in mode else None, "strict" in mode), pipe


def tell(pipe: int, text: str) -> None:
    if pipe >= 0:
        try:
            os.write(pipe, text.encode(errors="replace") + b"\n")
        except OSError:
            return


def given_to(start: Start) -> list[str]:
    """What a check gives one of the policy's programs to read: files of the tests that it opens for it or names."""
    words = [start.main, *start.rest]
    words += [word.partition("=")[2] for word in start.rest]
    words += [value for name, value in os.environ.items() if name not in NO_INPUT and value.startswith("/")]
    words += [f"/proc/self/fd/{fd}" for fd in range(10)]
    places = {os.path.realpath(word) for word in words if word and "\0" not in word and len(word) < 4096}
    return sorted(place for place in places if place.startswith(TESTS + "/") and os.path.exists(place))


def be_plain(real: str, words: list[str], start: Start, pipe: int, given: list[str]) -> NoReturn:
    """The real interpreter, for a program whose own Pythons need no witness either; what it reaches for is told."""
    places = [place for place in os.environ.get("PATH", "").split(":") if place != f"{FOLDER}/bin"]
    os.environ["PATH"] = ":".join(places)
    os.environ.pop(VARIABLE, None)
    if pipe >= 0 and not start.stays_unseen():
        own = ["own", str(pipe), start.kind, start.main, "\n".join(given), *start.rest]
        os.execv(real, [real, *start.options, f"{FOLDER}/bootstrap.py", *own])
    os.execv(real, [real, *words])


def enter_domain(seal: Seal, given: list[str] | None = None) -> None:
    """A Landlock domain, where the kernel has it: not the memory of what started this, nor what the seal takes away.

    `given`: of the tests, what a program of the policy's may read under a strict seal; None: a check, which reads all.
    """
    abi = _call("syscall", CREATE_RULESET, None, 0, 1)
    if abi < 1:
        return
    seals_logs, seals_tests = (abi >= ABI_TRUNCATE and wanted for wanted in (seal.logs is not None, seal.is_strict))
    rights = SEALED_RIGHTS if seals_logs or seals_tests else MAKE_BLOCK
    if seals_tests and given is not None:
        rights |= READ
    fields = (rights, 0, SCOPE_SIGNAL) if abi >= ABI_SCOPES else (rights,)
    attributes = b"".join(field.to_bytes(8, sys.byteorder) for field in fields)
    ruleset = _call("syscall", CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        return
    if seals_logs or seals_tests:
        top = os.path.dirname(LOGS)
        kept = {LOGS: READ if seals_logs else rights, TESTS: 0 if seals_tests else rights}
        for path in ["/" + name for name in os.listdir("/") if "/" + name != top]:
            _allow(ruleset, path, rights)
        for path in [f"{top}/{name}" for name in os.listdir(top)]:
            _allow(ruleset, path, rights & kept.get(path, rights))
        for name in (seal.logs or []) if seals_logs else []:
            _allow(ruleset, f"{LOGS}/{name}", WRITE | TRUNCATE)
        for path in given or []:
            _allow(ruleset, path, rights & READ)
    _call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    _call("syscall", RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    if not rights:
        return
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    if os.path.isfile(f"/proc/self/fd/{fd}"):
        rights &= WRITE | TRUNCATE | READ
    rule = rights.to_bytes(8, sys.byteorder) + fd.to_bytes(4, sys.byteorder)
    _call("syscall", ADD_RULE, ruleset, 1, rule, 0)
    os.close(fd)


def _call(function: str, *arguments: object) -> int:
    """A function of libc by the bare extension module, which costs nothing to import; -1 without it."""
    try:
        import _ctypes

        address = _ctypes.dlsym(_ctypes.dlopen(None, 2), function)  # type: ignore[arg-type]
        return int(_ctypes.call_function(address, arguments))
    except (ImportError, OSError, AttributeError):
        return -1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
