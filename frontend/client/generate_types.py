"""Writes ratchet_client/types.py from the OpenAPI schema on standard input: `make client-types`."""

import subprocess
import sys
from pathlib import Path

TYPES = Path(__file__).parent / "ratchet_client" / "types.py"
HEADER = '"""Types of the API, generated from its OpenAPI schema by `make client-types`: do not edit."""'
GENERATE = [
    "--input-file-type", "openapi", "--output-model-type", "typing.TypedDict", "--target-python-version", "3.11",
    "--use-standard-collections", "--use-union-operator", "--use-schema-description", "--enum-field-as-literal", "all",
    "--naming-strategy", "parent-prefixed", "--formatters", "builtin", "--custom-file-header", HEADER,
]  # fmt: skip


def generate_types(schema: bytes) -> bytes:
    """The module as bytes. Raises CalledProcessError when the schema cannot be used."""
    generated = _run(["datamodel_code_generator", *GENERATE], schema)
    fixed = _run(["ruff", "check", "--fix-only", "--quiet", "--stdin-filename", str(TYPES), "-"], generated)
    return _run(["ruff", "format", "--stdin-filename", str(TYPES), "-"], fixed)


def _run(command: list[str], text: bytes) -> bytes:
    return subprocess.run([sys.executable, "-m", *command], input=text, stdout=subprocess.PIPE, check=True).stdout


if __name__ == "__main__":
    TYPES.write_bytes(generate_types(sys.stdin.buffer.read()))
