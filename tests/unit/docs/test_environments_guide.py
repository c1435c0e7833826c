"""The guide of environments names every field of a contract and every setting of a host, and no other."""

import inspect
import re
from pathlib import Path

import msgspec

from gpu_workers.contracts.environment import EnvironmentContract, Limits, MountRole, Network
from gpu_workers.sandboxes import host

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "environments.md").read_text()


def first_cells(heading: str) -> set[str]:
    """Names in the first column of the first table below a heading."""
    section = GUIDE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    table = section.partition("\n|")[2].partition("\n\n")[0]
    return {
        name
        for line in table.splitlines()
        for name in re.findall(r"`([\w.]+)`", line.split("|")[1 if line[0] == "|" else 0])
    }


def test_every_field_of_a_contract() -> None:
    nested = {"limits": Limits, "network": Network}
    fields: set[str] = set()
    for field in msgspec.structs.fields(EnvironmentContract):
        inner = nested.get(field.name)
        fields |= {f"{field.name}.{f.name}" for f in msgspec.structs.fields(inner)} if inner else {field.name}
    assert first_cells("The contract") == fields


def test_every_setting_of_a_host() -> None:
    assert first_cells("What a host grants") == set(re.findall(r'"(SANDBOX_[A-Z_]+)"', inspect.getsource(host)))


def test_every_role() -> None:
    assert all(f"| `{role}` |" in GUIDE for role in MountRole)
