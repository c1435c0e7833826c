"""The guides say what the code does."""

import re
from pathlib import Path

import msgspec

from gpu_workers.contracts.runspec import RunSpec

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "runs.md"


def test_every_field_of_a_spec_is_in_the_guide_and_no_other() -> None:
    fields = set()
    for field in msgspec.structs.fields(RunSpec):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            fields |= {f"{field.name}.{inner.name}" for inner in msgspec.structs.fields(field.type)} | {field.name}
        else:
            fields.add(field.name)
    assert _documented() == fields


def _documented() -> set[str]:
    """First cells of the table; `a.b`, `c` on one line means a.b and a.c."""
    names = set()
    for line in GUIDE.read_text().splitlines():
        if not line.startswith(("| `", "| **`")):
            continue
        first, *others = re.findall(r"`([\w.]+)`", line.split("|")[1])
        prefix = first.rpartition(".")[0]
        names |= {first, *(f"{prefix}.{other}" for other in others)}
    return names
