"""Turns the OpenAPI schema on standard input into ratchet_client/types.py on standard output: `make client-types`."""

import subprocess
import sys

HEADER = '"""Types of the API, generated from its OpenAPI schema by `make client-types`: do not edit."""'
GENERATE = [
    "--input-file-type", "openapi", "--output-model-type", "typing.TypedDict", "--target-python-version", "3.11",
    "--use-standard-collections", "--use-union-operator", "--use-schema-description", "--enum-field-as-literal", "all",
    "--naming-strategy", "parent-prefixed", "--formatters", "builtin", "--custom-file-header", HEADER,
]  # fmt: skip


def generate_types(schema: bytes) -> bytes:
    """The module as bytes. Raises CalledProcessError when the schema cannot be used."""
    generated = _run(["datamodel_code_generator", *GENERATE], schema)
    fixed = _run(["ruff", "check", "--fix-only", "--quiet", "--stdin-filename", "types.py", "-"], generated)
    return _run(["ruff", "format", "--stdin-filename", "types.py", "-"], fixed)


def _run(command: list[str], text: bytes) -> bytes:
    return subprocess.run([sys.executable, "-m", *command], input=text, stdout=subprocess.PIPE, check=True).stdout


if __name__ == "__main__":
    sys.stdout.buffer.write(generate_types(sys.stdin.buffer.read()))
