"""Reads the RUN instructions of a Dockerfile that need no build: files that they write, installs of what is there.

Everything else a RUN may hold is refused with the command: what only a shell could work out, nobody here guesses.
"""

import posixpath
import re
import shlex
from dataclasses import dataclass

from apps.tasks.suites.installs import PACKAGES, SYSTEM_PACKAGES, unfit_package

# Folders that are made by the sandbox where they are needed.
ELSEWHERE = ("/logs", "/tests", "/solution", "/tmp", "/var/lib/apt/lists", "/root/.cache")  # noqa: S108
TERMINAL = frozenset({"asciinema", "tmux"})  # of the harness that the format comes from
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "a": "\a", "0": "\0"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", re.DOTALL)


class Unfollowed(Exception):
    """A command that is not followed here; the message is the command."""


KEPT = ".keep"  # the file that holds an empty folder open


@dataclass(frozen=True)
class Written:
    """A file that a RUN writes: absolute path, what it then holds, whether that is put behind what is there."""

    path: str
    text: str
    append: bool = False


def follow_run(text: str, workdir: str) -> list[Written]:
    """Files that a RUN instruction (without its first word) leaves. Raises Unfollowed."""
    if text.startswith(("[", "--")) or any(sign in text for sign in ("$", "`", "<<")):
        raise Unfollowed(text[:80])
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError as error:
        raise Unfollowed(text[:80]) from error
    found: list[Written] = []
    command: list[str] = []
    for word in [*words, ";"]:
        if word in ("&&", ";"):
            if command:
                found += _follow(command, workdir)
            command = []
        else:
            command.append(word)
    return found


def _follow(command: list[str], workdir: str) -> list[Written]:
    name, *words = command
    target, append = "", False
    if len(words) > 1 and words[-2] in (">", ">>"):
        target, append, words = _absolute(words[-1], workdir), words[-2] == ">>", words[:-2]
    if any(set(word) <= set("<>|&();") for word in words):
        raise Unfollowed(shlex.join(command)[:80])
    said = _said(name, words) if target else None
    if said is not None:
        return [Written(target, said, append)]
    if target:
        raise Unfollowed(shlex.join(command)[:80])
    plain = [word for word in words if not word.startswith("-")]
    match name:
        case "mkdir":
            paths = [_absolute(word, workdir) for word in plain]
            return [Written(f"{path}/{KEPT}", "", append=True) for path in paths if not _elsewhere(path)]
        case "touch":
            return [Written(_absolute(word, workdir), "", append=True) for word in plain]
        case "rm" if plain and all(_elsewhere(_absolute(word, workdir)) for word in plain):
            return []
        case "apt-get" | "apt" if plain and plain[0] in ("update", "clean", "autoremove"):
            return []
        case "apt-get" | "apt" if plain and plain[0] == "install":
            return _installed(" ".join(plain[1:]), SYSTEM_PACKAGES | TERMINAL, command)
        case "pip" | "pip3" if words[:1] == ["install"]:
            return _installed(shlex.join(words[1:]), PACKAGES, command)
        case "true" | ":" | "chmod" if name != "chmod" or len(plain) > 1:
            return []
    raise Unfollowed(shlex.join(command)[:80])


def _installed(words: str, known: frozenset[str], command: list[str]) -> list[Written]:
    if package := unfit_package(words, known):
        raise Unfollowed(f"{shlex.join(command)[:80]}: {package} would have to be installed")
    return []


def _elsewhere(path: str) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in ELSEWHERE)


def _absolute(path: str, workdir: str) -> str:
    return posixpath.normpath(posixpath.join(workdir, path))


def _said(name: str, words: list[str]) -> str | None:
    """What `echo` or `printf` prints, as the shell of a Debian image has them; None where that depends on more."""
    if name == "echo":
        ends = "" if words[:1] == ["-n"] else "\n"
        rest = words[1:] if words[:1] == ["-n"] else words
        unsure = any("\\" in word for word in rest) or any(word.startswith("-") for word in rest[:1])
        return None if unsure else " ".join(rest) + ends
    if name != "printf" or not words or words[0].startswith("-"):
        return None
    pattern, arguments = _unescape(words[0]), words[1:]
    bare = pattern.replace("%%", "")
    if not bare.count("%") == bare.count("%s") == len(arguments):
        return None
    parts = iter(arguments)
    return re.sub(r"%[%s]", lambda found: "%" if found.group() == "%%" else next(parts), pattern)


def _unescape(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        sign = found.group(1)
        if sign[0] == "x":
            return chr(int(sign[1:], 16))
        if sign[0] in "01234567":
            return chr(int(sign, 8))
        return _ESCAPES.get(sign, f"\\{sign}")

    return _ESCAPE.sub(one, text)
