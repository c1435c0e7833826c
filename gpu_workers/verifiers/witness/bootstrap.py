"""Runs the main program of a check as Python would, and tells the wrapper how it ended, before any handler of an exit.

Called as `python bootstrap.py GIFT CHANNEL KIND MAIN WORDS…`, for a program of the policy's, which tells nothing of its
end, as `python bootstrap.py own PIPE KIND MAIN GIVEN WORDS…`. While the main program runs, what it will be told with is
held by C code alone: no frame below the main program and no module has the nonce, and what judges the end uses names
and built-ins of its own, which patches do not reach.
"""

from __future__ import annotations

# ruff: noqa: PTH109, PTH113, PTH119, PTH120, PTH123, S102
import os
import posix
import sys
from _functools import partial, reduce  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:  # which every start of Python would pay for
    from collections.abc import Callable
    from types import CodeType, TracebackType
    from typing import Any

    End = tuple[BaseException | None, TracebackType | None, CodeType | None]  # what the main program was, too

POLICY, CHECK = "/workspace/app", "/workspace/tests"
TEST_RUNNERS = ("pytest", "_pytest", "pluggy")
NEUTRAL = ("runpy", "_sitebuiltins", "importlib._bootstrap", "importlib._bootstrap_external")


def main_of(kind: str, main: str, watch: Any) -> Callable[[Any], End]:
    """What runs the main program and gives what it ended with."""
    here = sys._getframe().f_code.co_filename
    trace_of = BaseException.__dict__["__traceback__"].__get__  # not what a class of the candidate's makes of it

    def run(_: Any) -> End:
        code = None
        try:
            names, source = prepared(kind, main)
            watch.mine = names
            if kind == "module":
                import runpy

                runpy._run_module_as_main(main)  # type: ignore[attr-defined]
            elif kind == "script" and not os.path.isfile(main):  # a folder
                import runpy

                runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
            else:
                name = names.get("__file__", "<string>" if kind == "text" else "<stdin>")
                code = compile(source, name, "exec", 0, True)
                exec(code, names)
        except BaseException as error:
            trace = trace_of(error)
            while trace is not None and trace.tb_frame.f_code.co_filename == here:
                trace = trace.tb_next
            return error, trace, code
        return None, None, code

    return run


def prepared(kind: str, main: str) -> tuple[dict[str, Any], bytes | str]:
    """A fresh __main__ and its source."""
    module = sys.modules["__main__"] = type(sys)("__main__")
    names = module.__dict__
    names.update(__annotations__={}, __builtins__=__builtins__, __package__=None, __spec__=None)
    if kind == "module" or (kind == "script" and not os.path.isfile(main)):
        return names, ""
    if kind == "script":
        loader = sys.modules["_frozen_importlib_external"].SourceFileLoader
        main = f"{os.getcwd()}/{main}" if not main.startswith("/") else main
        names.update(__file__=main, __cached__=None, __loader__=loader("__main__", main))
        with open(main, "rb") as file:
            return names, file.read()
    names["__loader__"] = sys.modules["_frozen_importlib"].BuiltinImporter
    if kind == "text":
        return names, main
    with open(0, "rb", closefd=False) as file:
        return names, file.read()


def unhook_with(setprofile: Callable[[None], None], settrace: Callable[[None], None]) -> Callable[[End], End]:
    """What takes away the hooks by which the main program could look into what comes next."""

    def unhook(end: End) -> End:
        setprofile(None)
        settrace(None)
        return end

    return unhook


def teller_of(
    say: Callable[[bytes], Any], roots: tuple[str, ...], look: Callable[[], None] | None
) -> Callable[[End], None]:
    """What tells how the main program ended, and then ends as Python would. `roots`: the policy's folder.

    `look` tells before what the check's interpreter has become; None: the program is the policy's, nothing is told.
    """
    process, getpid = posix.getpid(), posix.getpid

    def tell(ended: End) -> None:
        end, trace, main = ended
        code = code_of(end)
        if look is not None and getpid() == process:  # and not a child that was forked in the main program
            look()
            is_own = code != 0 or not isinstance(end, SystemExit) or by_check(trace, main, roots)
            say(b"%d" % code if is_own else b"exit")
        if end is None:
            return
        if isinstance(end, (SystemExit, KeyboardInterrupt)):
            raise end.with_traceback(trace)
        sys.last_type, sys.last_value, sys.last_traceback = type(end), end, trace
        sys.excepthook(type(end), end.with_traceback(trace), trace)
        raise SystemExit(1)

    return tell


def code_of(end: BaseException | None) -> int:
    """The exit code that Python gives."""
    if end is None:
        return 0
    if not isinstance(end, SystemExit):
        return 1
    value = end.code
    return 0 if value is None else int(value) & 0xFF if isinstance(value, int) else 1


def by_check(trace: TracebackType | None, main: CodeType | None, roots: tuple[str, ...]) -> bool:
    """Whether an exit was raised by code of the check: no frame is the policy's, the last one's text is an exit."""
    frames = []
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith(roots):
            return False
        names = trace.tb_frame.f_globals
        name = names.get("__name__")
        if name not in NEUTRAL or getattr(sys.modules.get(name), "__dict__", None) is not names:
            frames.append((code, trace.tb_lineno))
        trace = trace.tb_next
    if not frames:
        return False
    code, line = frames[-1]
    if main is not None and code in nested(main):
        if code.co_filename in ("<string>", "<stdin>"):
            return True
    elif not is_in_file(code):
        return False
    try:
        with open(code.co_filename, "rb") as file:
            text = file.read().splitlines()[line - 1].lower()
    except (OSError, IndexError):
        return False
    return b"exit" in text or b"quit" in text


def is_in_file(code: CodeType) -> bool:
    """Whether a piece of code is what its file says, and does not only bear the file's name."""
    try:
        with open(code.co_filename, "rb") as file:
            whole = compile(file.read(), code.co_filename, "exec", 0, True)
    except (OSError, SyntaxError, ValueError):
        return False
    return code in nested(whole)


def nested(code: CodeType) -> set[CodeType]:
    """A piece of code and all that is defined in it."""
    found = {code}
    for value in code.co_consts:
        if isinstance(value, type(code)):
            found |= nested(value)
    return found


def prepare_path(kind: str, main: str) -> None:
    """sys.path as Python makes it for this start; but what the policy wrote is not taken for a library's runner."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return
    del sys.path[0]  # this file's
    if kind == "script":
        sys.path.insert(0, os.path.dirname(os.path.realpath(main)) if os.path.isfile(main) else main)
    elif kind == "module":
        first = main.partition(".")[0]
        place = len(sys.path) if first in sys.stdlib_module_names or first in TEST_RUNNERS else 0
        sys.path.insert(place, os.getcwd())
    else:
        sys.path.insert(0, "")


def steps(words: list[str]) -> tuple[Callable[[Any], Any], ...]:
    is_own, channel, kind, main = words[0] == "own", int(words[1]), words[2], words[3]
    nonce, given = b"", []  # type: bytes, list[str]
    if is_own:
        given = words.pop(4).splitlines()
    else:
        nonce = posix.read(int(words[0]), 64)
        posix.close(int(words[0]))
        sys.executable = f"{os.path.dirname(__file__)}/bin/{os.path.basename(sys.executable)}"
    posix.set_inheritable(channel, False)
    prepare_path(kind, main)
    own = {"script": [], "text": ["-c"], "module": ["-m"], "stdin": []}[kind]
    sys.orig_argv[:] = [sys.orig_argv[0], *own, *([main] if main else []), *words[4:]]
    sys.argv[:] = [main if kind in ("script", "stdin") else own[0], *words[4:]]
    say = partial(_write, posix.write, channel, nonce)
    if not is_own:
        load("handlers")["install"]()
        watch_outcomes()
    watch, look = watch_deeds(say, names_of(POLICY), given if is_own else None)
    own_names: dict[str, Any] = {**globals(), "__builtins__": dict(vars(sys.modules["builtins"]))}
    function: Any = type(steps)
    for judge in (unhook_with, teller_of, code_of, by_check, is_in_file, nested):
        own_names[judge.__name__] = function(judge.__code__, own_names)
    unhook = own_names["unhook_with"](sys.setprofile, sys.settrace)
    if is_own:
        return main_of(kind, main, watch), own_names["teller_of"](say, (), None)
    return main_of(kind, main, watch), unhook, own_names["teller_of"](say, names_of(POLICY), look)


def load(name: str) -> dict[str, Any]:
    """A file of ours as names of its own, with built-ins that patches do not reach; it is no module."""
    path = f"{os.path.dirname(__file__)}/{name}.py"
    with open(path, "rb") as file:
        names: dict[str, Any] = {"__name__": name, "__builtins__": dict(vars(sys.modules["builtins"]))}
        exec(compile(file.read(), path, "exec", 0, True), names)
    return names


def watch_deeds(
    say: Callable[[bytes], Any], roots: tuple[str, ...], given: list[str] | None
) -> tuple[Any, Callable[[], None]]:
    """The watch over the policy's code, and what tells at the end what that code has replaced.

    `given`: the files that a program of the policy's may read; None: this is a check, whose state is taken when the
    first file of the policy's is loaded.
    """
    names = load("watching")

    def tell(kind: str, what: str) -> None:
        line = f"see {kind}\t{what}" if given is not None else f"see {kind} {what}"
        say(line.encode(errors="replace"))

    def begin() -> None:
        if not looks:
            read = load_integrity()
            looks.append(read["start"](roots, watch.made, say))
            guards.append(load_standins()["guard"])
        guards[0](watch, is_checks)

    def is_checks(module: Any) -> bool:
        place = getattr(module, "__dict__", {}).get("__file__")
        is_main = module is sys.modules.get("__main__")
        return is_main or (isinstance(place, str) and os.path.realpath(place).startswith(CHECK + "/"))

    def look() -> None:
        for read in looks:
            for kind, what in read():
                tell(kind, what)

    looks: list[Callable[[], list[tuple[str, str]]]] = []
    guards: list[Callable[[Any, Callable[[Any], bool]], None]] = []
    load_integrity, load_standins = partial(load, "integrity"), partial(load, "standins")
    watch = names["Watch"](tell, roots, own=given is not None, given=given or ())
    watch.on_code = begin
    watch.install()
    return watch, look


def watch_outcomes() -> None:
    """Has the tests of pytest and unittest told to the overseer, where its pipe has come this far."""
    try:
        pipe, inode = (int(part) for part in os.environ["RATCHET_WITNESS"].split(":")[:2])
        if os.fstat(pipe).st_ino != inode:
            return
    except (KeyError, ValueError, OSError):
        return
    names = load("outcomes")
    names["watch"](names["teller"](pipe), names_of(POLICY))


def names_of(folder: str) -> tuple[str, ...]:
    """Beginnings of paths below a folder: by its own path and by links of the root that lead to it."""
    real = os.path.realpath(folder)
    links = [entry.path for entry in os.scandir("/") if entry.is_symlink() and os.path.realpath(entry.path) == real]
    return tuple(path + "/" for path in (real, *links))


def _write(write: Callable[[int, bytes], int], channel: int, nonce: bytes, text: bytes) -> None:
    write(channel, nonce + text + b"\n")


if __name__ == "__main__":
    reduce(lambda end, step: step(end), steps(sys.argv[1:]), None)
