"""The test script of a Harbor task: which of the installs it begins with can be had from the worker's test tools. Pure.

The documented template fetches uv, and pytest with it, from the network. A verifier has none: it runs the script as it
is, with the worker's stand-ins for these installers before the system's programs. A script that installs more than they
have is refused here, with the line, and not left to fail its check.
"""

import re
from collections.abc import Iterator

from apps.tasks.suites.dockerfile import NotRunnable
from apps.tasks.suites.installs import PACKAGES, SYSTEM_PACKAGES, unfit_package
from gpu_workers.contracts.environment import TEST_TOOLS, Mount, MountRole

PLACE = f"/{TEST_TOOLS}"
MOUNT = Mount(path=PLACE, source=TEST_TOOLS, role=MountRole.VERIFIER_SECRET)
START = "ratchet-start.sh"
STARTER = f"""#!/bin/bash
# Puts the worker's test tools before the system's programs and runs the task's own script.
export RATCHET_PYTHON="$(command -v python3)"
for folder in {PLACE}/lib/python3*/site-packages; do export PYTHONPATH="$folder"; done
export PATH="{PLACE}/tools:$PATH"
exec bash /tests/test.sh
"""
_USES = re.compile(r"\b(pytest|py\.test|uvx|uv|pip3?|apt(?:-get)?)\b")
_WORDS = r"""((?:'[^']*'|"[^"]*"|[^;&|>])*)"""  # up to what ends a command
_INSTALLS = (
    (re.compile(rf"\b(?:pip3?|uv\s+pip)\s+install\b{_WORDS}"), PACKAGES),
    (re.compile(rf"\buv\s+add\b{_WORDS}"), PACKAGES),
    (re.compile(rf"\bapt(?:-get)?\s+(?:-\S+\s+)*install\b{_WORDS}"), SYSTEM_PACKAGES),
)
_WITH = re.compile(r"(?:\s-w|\s--with|\s--from)[\s=]+['\"]?([^\s'\"]+)")


def needs_tools(script: str) -> bool:
    """Whether a script calls pytest or an installer. Raises NotRunnable for an install that cannot be had."""
    used = False
    for number, line in _lines(script):
        used = used or _USES.search(line) is not None
        for pattern, known in _INSTALLS:
            for words in pattern.findall(line):
                _check(words, known, number, line)
        if re.search(r"\buvx\b|\buv\s+(?:tool\s+)?run\b", line):
            for given in _WITH.findall(line):
                for requirement in given.split(","):
                    _check(requirement, PACKAGES, number, line)
    return used


def _check(words: str, known: frozenset[str], number: int, line: str) -> None:
    if package := unfit_package(words, known):
        message = (
            f"tests/test.sh line {number} installs {package}: without network there are {', '.join(sorted(PACKAGES))}"
        )
        raise NotRunnable(f"{message}: {line.strip()[:80]}")


def _lines(script: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, continued ones joined, with the number of their first."""
    joined, first = "", 1
    for number, line in enumerate(script.replace("\r\n", "\n").split("\n"), start=1):
        joined += line[:-1] + " " if line.endswith("\\") else line
        if not line.endswith("\\"):
            if not joined.lstrip().startswith("#"):
                yield first, joined
            joined, first = "", number + 1
