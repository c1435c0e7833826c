"""Runs a program of another Python that lists tasks as JSON lines, bounded in time and size."""

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apps.tasks.suites.errors import SuiteError
from ratchet.strict_json import StrictJsonError, loads

MAX_BYTES = 64 * 2**20
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "RATCHET_HOME", "RATCHET_ENVIRONMENTS_DIR")


def environment_python(environments: Path, name: str) -> Path:
    """The interpreter of an environment's own virtual environment. Raises SuiteError saying how to make it."""
    python = environments / name / "bin" / "python"
    if not os.access(python, os.X_OK):
        hint = f"{python} does not exist: run `make environments`, or set RATCHET_ENVIRONMENTS_DIR"
        raise SuiteError.single(name, hint)
    return python


def list_rows(
    argv: Sequence[str], *, source: str, timeout_seconds: float, extra: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Rows that the program prints, an object a line. Raises SuiteError with the end of what it complained."""
    # No secret of the control plane reaches code that is not ours.
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ} | dict(extra or {})
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            done = subprocess.run(
                list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, check=False,
                timeout=timeout_seconds,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise SuiteError.single(source, f"listing the tasks took more than {timeout_seconds:.0f} s") from error
        except OSError as error:
            raise SuiteError.single(source, f"cannot be started: {error}") from error
        if done.returncode != 0:
            raise SuiteError.single(source, f"listing the tasks failed: {_last_line(err)}")
        if out.seek(0, os.SEEK_END) > MAX_BYTES:
            raise SuiteError.single(source, f"the tasks take more than {MAX_BYTES // 2**20} MiB: set a limit")
        out.seek(0)
        return [_row(source, line) for line in out.read().decode("utf-8", "replace").splitlines() if line.strip()]


def _row(source: str, line: str) -> dict[str, Any]:
    try:
        row = loads(line)
    except StrictJsonError as error:
        raise SuiteError.single(source, f"printed what is no JSON: {error}") from error
    if not isinstance(row, dict):
        raise SuiteError.single(source, f"printed {type(row).__name__}, not an object")
    return row


def _last_line(err: Any) -> str:
    size = err.seek(0, os.SEEK_END)
    err.seek(max(0, size - 2000))
    lines: list[str] = err.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:500] if lines else "it said nothing"
