"""The built-in tools that read and write files; shipped as text, run in the sandbox, standard library only.

The text returned is one line of JSON, `{"error": …, "truncated": …}`, then what the policy reads.
"""

from __future__ import annotations

# No pathlib: importing it would take longer than the call.
# ruff: noqa: PTH103, PTH112, PTH113, PTH120
import os

TYPE_CHECKING = False  # the module typing would take longer to import than the call
if TYPE_CHECKING:
    from typing import Any

MAX_LISTED = 20


class Refused(Exception):
    """What the policy is told instead of a result."""


def read_file(request: dict[str, Any]) -> str:
    """Lines [start_line, start_line + num_lines) of a file, at most `limit` bytes; 0 lines: as many as fit."""
    return _answer(_read, request)


def write_file(request: dict[str, Any]) -> str:
    """Write, or append to, a regular file; folders on the way are made."""
    return _answer(_write, request)


def _answer(do: Any, request: dict[str, Any]) -> str:
    try:
        text, truncated = do(request)
        return ('{"truncated": true}\n' if truncated else "{}\n") + text
    except Refused as refused:
        problem = str(refused)
    except OSError as error:
        problem = request["path"] + ": " + str(error.strerror)
    import json  # takes longer than a call that goes well

    return json.dumps({"error": problem}) + "\n"


def _read(request: dict[str, Any]) -> tuple[str, bool]:
    path, first, limit = request["path"], request["start_line"], request["limit"]
    last = first + request["num_lines"] - 1 if request["num_lines"] else 0
    with _open(path, os.O_RDONLY) as file:
        data, number, stop, cut = bytearray(), 0, first - 1, False
        for line in _lines(file, limit):
            number += line.count(b"\n") or 1
            if number < first or (last and number > last) or cut:
                continue
            if len(data) + len(line) > limit:
                cut = True
                if not data:
                    data += line[:limit]
                    stop = number
                continue
            data += line
            stop = number
    if number and first > number:
        raise Refused(path + " has " + str(number) + " lines, start_line " + str(first) + " is beyond its end")
    text = data.decode("utf-8", "replace")
    if first == 1 and stop >= number and not cut:
        return text, False
    note = "lines " + str(first) + " to " + str(stop) + " of " + str(number)
    if stop < number:
        note += "; start_line=" + str(stop + 1) + " goes on"
    elif cut:
        note += "; the line is longer than " + str(limit) + " bytes"
    return text + ("" if text.endswith("\n") else "\n") + "[" + note + "]", cut


def _lines(file: Any, limit: int) -> Any:
    """Lines; of one that is longer than the limit only so much, the rest is skipped."""
    while line := file.readline(limit + 1):
        end = line
        while not end.endswith(b"\n") and (end := file.readline(65536)):
            pass
        yield line


def _write(request: dict[str, Any]) -> tuple[str, bool]:
    data = request["content"].encode("utf-8", "replace")
    folder = os.path.dirname(request["path"])
    if folder:
        os.makedirs(folder, exist_ok=True)
    append = request["append"]
    with _open(request["path"], os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_APPEND if append else 0)) as file:
        if not append:
            file.truncate(0)
        file.write(data)
        file.flush()
        size = os.fstat(file.fileno()).st_size if append else len(data)
    if append:
        return "appended " + str(len(data)) + " bytes to " + request["path"] + ", now " + str(size), False
    return "wrote " + str(len(data)) + " bytes", False


def _open(path: str, flags: int) -> Any:
    try:
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        raise Refused(path + ": no such file" + _near(path)) from None
    except IsADirectoryError:
        raise Refused(path + " is a folder" + _near(path + "/")) from None
    if os.path.isdir("/proc/self/fd/" + str(fd)):
        raise Refused(path + " is a folder" + _near(path + "/"))
    if not os.path.isfile("/proc/self/fd/" + str(fd)):
        raise Refused(path + " is not a regular file")
    return os.fdopen(fd, "rb" if flags & 3 == os.O_RDONLY else "wb")


def _near(path: str) -> str:
    """What the folder of a path holds, for a policy that has mistyped a name."""
    folder = os.path.dirname(path) or "."
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name + "/" * entry.is_dir() for entry in entries)
    except OSError:
        return ""
    if not names:
        return "; " + folder + " is empty"
    more = ", …" if len(names) > MAX_LISTED else ""
    return "; " + folder + " holds " + ", ".join(names[:MAX_LISTED]) + more
