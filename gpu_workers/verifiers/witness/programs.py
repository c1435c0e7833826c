"""The read-only programs of a verifier's sandbox that see how Pythons end."""

import os
import re
from functools import lru_cache
from pathlib import Path

from gpu_workers.verifiers.witness import (
    bootstrap,
    handlers,
    integrity,
    outcomes,
    overseer,
    standins,
    watching,
    wrapper,
)

FOLDER = wrapper.FOLDER
OVERSEER = Path(overseer.__file__).read_text(encoding="utf-8")
PLACES = ("/usr/local/bin", "/usr/bin")  # in the order of a sandbox's PATH
_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?\Z")
_RUNNER = re.compile(r"pytest\Z|py\.test\Z")


@lru_cache(maxsize=1)
def witness_programs() -> dict[str, str]:
    """Path inside -> text: one wrapper for every name that Python and its test runners have on this system."""
    programs = {
        f"{FOLDER}/{Path(module.__file__).name}": Path(module.__file__).read_text(encoding="utf-8")
        for module in (wrapper, bootstrap, handlers, outcomes, watching, standins, integrity)
        if module.__file__
    }
    found: dict[str, str] = {}
    for place in PLACES:
        for name in sorted(path.name for path in Path(place).glob("*py*")):
            if (_PYTHON.match(name) or _RUNNER.match(name)) and os.access(f"{place}/{name}", os.X_OK):
                found.setdefault(name, f"{place}/{name}")
    if "python3" not in found:
        return {}
    for name, path in found.items():
        real, main = (path, "") if _PYTHON.match(name) else (found["python3"], f" {path}")
        line = f'exec {real} -I -S {FOLDER}/wrapper.py {real}{main} "$@"'
        programs[f"{FOLDER}/bin/{name}"] = f"#!/bin/sh\n{line}\n"
    return programs
