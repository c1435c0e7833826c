"""Reads the Dockerfile of a task: a base image with files copied or written can be a sandbox here, a build cannot."""

import json
import posixpath
import re
import shlex
from dataclasses import dataclass, field

from apps.tasks.suites.docker_run import Unfollowed, Written, follow_run

_IGNORED = frozenset({"LABEL", "MAINTAINER", "CMD", "ENTRYPOINT", "EXPOSE", "STOPSIGNAL", "SHELL"})
_CONTINUED = re.compile(r"\\[ \t]*\n(?:[ \t]*#[^\n]*\n)*")
_VARIABLE = re.compile(r"\$(\w+|\{[^}]*\})")


class NotRunnable(Exception):
    """An instruction that only a container engine could follow; the message names it."""


@dataclass(frozen=True)
class Copied:
    """One COPY: sources below environment/, and an absolute target."""

    sources: list[str]
    target: str


@dataclass
class Recipe:
    """What a Dockerfile without a build comes to."""

    image: str = ""
    workdir: str = "/"
    environment: dict[str, str] = field(default_factory=dict)
    steps: list[Copied | Written] = field(default_factory=list)  # in their order
    ignored: list[str] = field(default_factory=list)


def read_dockerfile(text: str) -> Recipe:
    """Raises NotRunnable with the first instruction that cannot be followed here."""
    recipe = Recipe()
    for number, line in _instructions(text):
        word, _, rest = line.partition(" ")
        word, rest = word.upper(), rest.strip()
        where = f"line {number}: {word}"
        if word == "FROM":
            if recipe.image:
                raise NotRunnable(f"{where}: a build in stages")
            recipe.image = rest.split()[0] if rest else ""
        elif word == "WORKDIR":
            recipe.workdir = posixpath.normpath(posixpath.join(recipe.workdir, _plain(rest, where)))
        elif word == "ENV":
            recipe.environment |= _variables(rest, where)
        elif word in ("COPY", "ADD"):
            recipe.steps.append(_copy(word, rest, recipe.workdir, where))
        elif word == "RUN":
            try:
                recipe.steps += follow_run(rest, recipe.workdir)
            except Unfollowed as error:
                raise NotRunnable(f"{where} {error}") from error
        elif word in _IGNORED:
            recipe.ignored.append(word)
        else:
            raise NotRunnable(f"{where} {rest[:80]}".rstrip())
    if not recipe.image:
        raise NotRunnable("it names no base image")
    return recipe


def _instructions(text: str) -> list[tuple[int, str]]:
    """Instructions with the number of their line; continued lines joined."""
    found = []
    number = 1
    joined = _CONTINUED.sub(lambda match: "\0" * match.group().count("\n"), text.replace("\r\n", "\n") + "\n")
    for line in joined.split("\n"):
        stripped = line.replace("\0", " ").strip()
        if stripped and not stripped.startswith("#"):
            found.append((number, stripped))
        number += 1 + line.count("\0")
    return found


def _copy(word: str, rest: str, workdir: str, where: str) -> Copied:
    words = _words(rest, where)
    options = [word for word in words if word.startswith("--")]
    words = words[len(options) :]
    if any(not option.startswith(("--chmod=", "--chown=")) for option in options):
        raise NotRunnable(f"{where} {options[0]}")
    if len(words) < 2:
        raise NotRunnable(f"{where}: needs a source and a target")
    *sources, target = words
    if word == "ADD" and any("://" in source or source.endswith((".tar", ".gz", ".tgz", ".zip")) for source in sources):
        raise NotRunnable(f"{where} {sources[0][:80]}: fetches or unpacks")
    absolute = posixpath.normpath(posixpath.join(workdir, target))
    return Copied(
        sources, absolute + ("/" if target.endswith("/") or target in (".", "./") or len(sources) > 1 else "")
    )


def _words(rest: str, where: str) -> list[str]:
    if "<<" in rest:
        raise NotRunnable(f"{where}: a here-document")
    try:
        words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    except ValueError as error:
        raise NotRunnable(f"{where}: {error}") from error
    return [_plain(str(word), where) for word in words]


def _variables(rest: str, where: str) -> dict[str, str]:
    if "=" not in rest.split(None, 1)[0]:
        name, _, value = rest.partition(" ")
        return {name: _plain(value.strip(), where)}
    try:
        pairs = [word.partition("=") for word in shlex.split(rest)]
    except ValueError as error:
        raise NotRunnable(f"{where}: {error}") from error
    return {name: _plain(value, where) for name, _, value in pairs}


def _plain(text: str, where: str) -> str:
    if _VARIABLE.search(text):
        raise NotRunnable(f"{where}: {text[:80]} refers to a variable of the build")
    return text
