"""What a shell command comes to, as far as it can be told without running it: variables, encoded texts, globs. Pure."""

import base64
import binascii
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import islice

from gpu_workers.verifiers.detectors.traces import inflate

MAX_COMMAND = 20_000
MAX_ROUNDS = 3
MAX_TEXTS = 20
MAX_VALUE = 500  # characters of a variable: a text may name it thousands of times
_QUOTED = r"(?:'(?P<one>[^']*)'|\"(?P<two>[^\"]*)\"|(?P<bare>[^\s;&|'\"<>()]+))"
_ASSIGNED = re.compile(
    r"(?:^|(?<=[;&|\s(]))(?:export\s+)?(?P<name>[A-Za-z_]\w*)=" + _QUOTED.replace("]+))", "]*))"), re.M
)
_FILTERS = r"(?P<filters>(?:\s*\|\s*(?:base64|base32|rev|xxd|gzip|gunzip|zcat|cat)\b[^|;&\n)\"'`]*)*)"
_SAID = re.compile(rf"\b(?P<how>echo|printf)\s+(?P<options>(?:-\w+\s+)*)(?:'%s'\s+|%s\s+)?{_QUOTED}{_FILTERS}")
_HERE = re.compile(rf"\b(?P<filters>base64\s+(?:-d|-D|--decode)|rev|xxd\s+-r\s+-p)\s*<<<\s*{_QUOTED}")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|0?([0-7]{3}))")
_PATH = re.compile(r"(?<![\w./*?\]-])/(?P<first>[\w.*?\[\]-]{1,100})(?P<rest>/[^\s;&|'\"<>)]+)")
PLACES = ("tests", "solution", "oracle", "verifier", "grader", "grading", "answers", "hidden", "private", "secrets")
USUAL = ("bin", "boot", "data", "dev", "etc", "home", "lib", "lib64", "media", "mnt", "opt", "proc", "root", "run",
         "sbin", "srv", "sys", "tmp", "usr", "var", "workspace", "app")  # fmt: skip


def unfolded(command: str) -> list[str]:
    """Other texts that a command stands for; none where it stands for itself."""
    found: list[str] = []
    waiting = [command[:MAX_COMMAND]]
    for _ in range(MAX_ROUNDS):
        meant = (text[:MAX_COMMAND] for one in waiting for text in _once(one))
        waiting = [*islice((text for text in meant if text not in found and text != command), MAX_TEXTS)]
        found += waiting
    return found[:MAX_TEXTS]


def _once(command: str) -> Iterator[str]:
    values = {match["name"]: _text(match)[:MAX_VALUE] for match in _ASSIGNED.finditer(command)}
    if values:
        names = "|".join(map(re.escape, values))
        plain = re.sub(rf"\$(?:\{{({names})\}}|({names})\b)", lambda m: values[m[1] or m[2]], command)
        if plain != command:
            yield plain
    for said in _SAID.finditer(command):
        text = _text(said)
        if said["how"] == "printf" or "e" in said["options"]:
            text = _ESCAPE.sub(lambda m: chr(int(m[1], 16) if m[1] else int(m[2], 8) & 0xFF), text)
        text = _filtered(text, said["filters"])
        if text != _text(said):
            yield text
    for here in _HERE.finditer(command):
        yield _filtered(_text(here), "|" + here["filters"])
    globs = _PATH.sub(_place, command)
    if globs != command:
        yield globs


def _text(match: re.Match[str]) -> str:
    return str(match["one"] or match["two"] or match["bare"] or "")


def _place(match: re.Match[str]) -> str:
    """A pattern of the root's folders as the place of answers that it means, where it means no usual folder."""
    if not set(match["first"]) & set("*?[") or any(fnmatchcase(name, match["first"]) for name in USUAL):
        return match.group()
    place = next((name for name in PLACES if fnmatchcase(name, match["first"])), "")
    return f"/{place}{match['rest']}" if place else match.group()


def _filtered(text: str, filters: str) -> str:
    data = text.encode("utf-8", "replace")
    for part in filters.split("|")[1:]:
        name, _, options = part.strip().partition(" ")
        try:
            if name == "rev":
                data = b"\n".join(line[::-1] for line in data.split(b"\n"))
            elif name == "base64" and re.search(r"-d|-D|--decode", options):
                data = base64.b64decode(b"".join(data.split()))
            elif name == "base32" and re.search(r"-d|--decode", options):
                data = base64.b32decode(b"".join(data.split()))
            elif name == "xxd" and "r" in options:
                data = bytes.fromhex(data.decode("ascii", "replace"))
            elif name in ("gunzip", "zcat") or (name == "gzip" and "d" in options):
                data = inflate(data)
        except (binascii.Error, ValueError):
            return text
    return data.decode("utf-8", "replace")
