"""Stand-ins for the installers that test scripts call in a verifier's sandbox: what is here is installed, nothing else.

Runs there, by the sandbox's Python, with the standard library and the packages beside it; `tool` starts it under the
name that the script called. An installer succeeds for what can be had and fails, with the reason, for the rest.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import NoReturn

TOOLS = Path(__file__).resolve().parent
UV_SITE = "https://astral.sh/uv"
# The installer of uv leaves this file, and scripts source it.
UV_INSTALLER = 'mkdir -p "$HOME/.local/bin" && : > "$HOME/.local/bin/env"\n'
HAD = {"curl", "ca-certificates", "python3", "python3-pip", "python3-venv", "python-is-python3"}
VALUED = {"-p", "--python", "--index-url", "--extra-index-url", "-i", "--index", "--default-index", "--link-mode"}
WITH = {"-w", "--with"}


def main(name: str, words: list[str]) -> int:
    actions = {"apt": apt, "apt-get": apt, "curl": fetch, "wget": fetch, "pip": pip, "pip3": pip, "uv": uv, "uvx": uvx}
    if name in actions:
        return actions[name](words)
    if name in ("python", "python3"):
        return python(words)
    return pytest(words)


def apt(words: list[str]) -> int:
    plain = [word for word in words if not word.startswith("-")]
    if "install" not in plain:
        return 0
    for package in plain[plain.index("install") + 1 :]:
        if package not in HAD and outside(package) is None:
            return refuse("apt-get", f"the package {package}", 100)
    return 0


def fetch(words: list[str]) -> int:
    if any(word.startswith(UV_SITE) for word in words):
        sys.stdout.write(UV_INSTALLER)
        return 0
    name = sys.argv[1]
    program = outside(name)
    if program is None:
        return refuse(name, f"{name}: it could fetch nothing", 6)
    return run(program, words)


def pip(words: list[str]) -> int:
    if words[:1] != ["install"]:
        return refuse("pip", f"pip {' '.join(words[:1])}", 1)
    return install("pip", words[1:])


def uv(words: list[str]) -> int:
    command, rest = (words[0], words[1:]) if words else ("", [])
    if command == "pip" and rest[:1] == ["install"]:
        return install("uv pip", rest[1:])
    if command == "add":
        return install("uv", rest)
    if command == "venv":
        folder = next((word for word in rest if not word.startswith("-") and "." in word), ".venv")
        Path(folder, "bin").mkdir(parents=True, exist_ok=True)
        Path(folder, "bin", "activate").touch()
        return 0
    if command == "init" or command.startswith("-"):
        return 0
    if command == "run":
        return uvx(rest)
    if command == "tool" and rest[:1] == ["run"]:
        return uvx(rest[1:])
    return refuse("uv", f"uv {command}", 2)


def uvx(words: list[str]) -> int:
    rest, wanted = list(words), []
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option in (*WITH, "--from", *VALUED) and not equals:
            value = rest.pop(0) if rest else ""
        if option in WITH or option == "--from":
            wanted += value.split(",")
    if (code := install("uvx", wanted)) != 0:
        return code
    name, _, _ = (rest[0] if rest else "").partition("@")
    if name in ("pytest", "py.test"):
        return pytest(rest[1:])
    if name in ("python", "python3"):
        return python(rest[1:])
    return refuse("uvx", name or "a command", 2)


def install(name: str, words: list[str]) -> int:
    """Whether every requirement among the words is here already; another version of it is used, and that is said."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in VALUED and rest:
            rest.pop(0)
        if word in ("-r", "--requirement", "-e", "--editable"):
            return refuse(name, f"{word} {rest[0] if rest else ''}", 1)
        if word.startswith("-") or not word:
            continue
        package = re.split(r"[=<>~!\[@ ]", word)[0]
        try:
            version = metadata.version(package)
        except (metadata.PackageNotFoundError, ValueError):
            return refuse(name, f"the package {word}", 1)
        if "==" in word and word.partition("==")[2] != version:
            say(f"{word} was asked for, {version} is used")
    return 0


def pytest(words: list[str]) -> int:
    sys.argv = ["pytest", *words]
    from pytest import console_main

    return int(console_main())


def python(words: list[str]) -> int:
    if words[:2] == ["-m", "pytest"]:
        sys.path.append(str(Path.cwd()))  # as Python does, but last: a file of the policy is not taken for pytest
        return pytest(words[2:])
    return run(os.environ["RATCHET_PYTHON"], words)


def outside(name: str) -> str | None:
    """The program of that name that is none of these."""
    places = [place for place in os.environ.get("PATH", "").split(":") if Path(place).resolve() != TOOLS]
    return shutil.which(name, path=":".join(places))


def run(program: str, words: list[str]) -> NoReturn:
    os.execv(program, [program, *words])  # noqa: S606


def refuse(name: str, what: str, code: int) -> int:
    say(f"{name}: {what} is not to be had: a verifier has no network; here are pytest and pytest-json-ctrf")
    return code


def say(text: str) -> None:
    sys.stderr.write(f"ratchet: {text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
