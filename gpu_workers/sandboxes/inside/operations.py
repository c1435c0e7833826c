"""What a call does in the process forked for it: run a program, a script or a function, write or read files."""

# No pathlib: it would double the start-up time.
# ruff: noqa: PTH103, PTH113, PTH118, PTH120, S606, SIM115
import _signal  # type: ignore[import-not-found]  # the signal module would import enum
import os
import sys

from gpu_workers.sandboxes.inside.guard import enter_domain
from gpu_workers.sandboxes.inside.limits import limit_call, limit_service, set_dumpable

WORKSPACE = "/workspace"


def be_child(request: dict, out_write: int, err_write: int) -> None:
    """Become the call; never returns."""
    code = 70
    try:
        os.setsid()
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)  # as in any Python, unlike in process 1
        limit_call(request["memory"], request["cpu"])
        os.dup2(_stdin_of(request.get("stdin", b"")), 0)
        os.dup2(out_write if request["op"] in ("exec", "run") else err_write, 1)
        os.dup2(err_write, 2)
        os.chdir(WORKSPACE)
        if request["guarded"]:
            enter_domain()
        if request["op"] != "call":  # a tool's or verifier's own memory stays closed to what it starts
            set_dumpable(1)
        code = OPERATIONS[request["op"]](request, out_write)
    except OSError as error:
        os.write(2, (request["op"] + ": " + str(error) + "\n").encode())
        code = 74
    except MemoryError:
        os.write(2, b"out of memory\n")
        code = 71
    finally:
        os._exit(code)


def be_service(request: dict, talk: int, errors: int) -> None:
    """Become a program that lives as long as the sandbox; never returns."""
    code = 70
    try:
        os.setsid()
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        limit_service(request["memory"])
        os.dup2(talk, 0)
        os.dup2(talk, 1)
        os.dup2(errors, 2)
        os.closerange(3, 256)
        os.chdir(WORKSPACE)
        os.environ.update(request["environment"])
        if request["argv"]:
            set_dumpable(1)
            code = run_program(request, -1)
        else:  # stays undumpable, and imports nothing that the policy may have written
            # Those of process 1 were opened on other files and remember what those could do.
            sys.stdin = open(0, encoding="utf-8", closefd=False)
            sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
            sys.stderr = open(2, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)
            code = _in_module("__main__", request, -1)
    except OSError as error:
        os.write(2, ("serve: " + str(error) + "\n").encode())
        code = 74
    finally:
        os._exit(code)


def _stdin_of(data: bytes) -> int:
    """A descriptor to read `data` from."""
    if not data:
        return os.open("/dev/null", os.O_RDONLY)
    fd = os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)  # noqa: S108  the sandbox's own
    _write_all(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def run_program(request: dict, _: int) -> int:
    """exec: replace the child by a program."""
    argv = request["argv"]
    try:
        os.execvp(argv[0], argv)
    except FileNotFoundError:
        os.write(2, (argv[0] + ": not found\n").encode())
        return 127
    except PermissionError:
        os.write(2, (argv[0] + ": permission denied\n").encode())
        return 126


def run_script(request: dict, _: int) -> int:
    """run: Python code as __main__, with the workspace importable."""
    sys.path.insert(0, WORKSPACE)
    return _in_module("__main__", request, -1)


def run_function(request: dict, out_write: int) -> int:
    """call: the module's function with the arguments; its text goes to the private pipe, not to stdout."""
    return _in_module("tool", request, out_write)


def _in_module(name: str, request: dict, out_write: int) -> int:
    """Execute the source as module `name`; the exit code Python itself would give."""
    module = type(sys)(name)
    sys.modules[name] = module
    code = 0
    try:
        exec(compile(request["source"], "<" + name + ">", "exec"), module.__dict__)  # noqa: S102
        if out_write >= 0:
            result = getattr(module, request["function"])(request["arguments"])
            text = result if isinstance(result, str) else repr(result)
            _write_all(out_write, text.encode("utf-8", "replace"))
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            os.write(2, (stop.code + "\n").encode())
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code & 255


def write_files(request: dict, _: int) -> int:
    for path, data in request["files"].items():
        target = os.path.join(WORKSPACE, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        if not os.path.isfile("/proc/self/fd/" + str(fd)):
            raise OSError(path + " is not a regular file")
        os.ftruncate(fd, 0)
        _write_all(fd, data)
        os.close(fd)
    return 0


def read_file(request: dict, out_write: int) -> int:
    fd = os.open(os.path.join(WORKSPACE, request["path"]), os.O_RDONLY | os.O_NONBLOCK)
    if not os.path.isfile("/proc/self/fd/" + str(fd)):
        raise OSError(request["path"] + " is not a regular file")
    left = request["limit"]
    while left > 0:
        data = os.read(fd, min(left, 65536))
        if not data:
            break
        left -= len(data)
        _write_all(out_write, data)
    return 0


OPERATIONS = {
    "exec": run_program,
    "run": run_script,
    "call": run_function,
    "write": write_files,
    "read": read_file,
}
