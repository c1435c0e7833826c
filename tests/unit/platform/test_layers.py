"""The import rules of pyproject.toml cover every part there is."""

import tomllib
from typing import Any

from ratchet.env import ROOT


def contracts() -> list[dict[str, Any]]:
    loaded = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: list[dict[str, Any]] = loaded["tool"]["importlinter"]["contracts"]
    return found


def test_every_app_has_a_layer() -> None:
    (layers,) = (contract["layers"] for contract in contracts() if contract["type"] == "layers")
    named = {name.strip() for layer in layers for name in layer.replace(":", "|").split("|")}
    assert named == {path.parent.name for path in (ROOT / "apps").glob("*/apps.py")}


def test_the_control_plane_is_kept_from_all_workers_code_but_the_contracts() -> None:
    (forbidden,) = (
        contract["forbidden_modules"] for contract in contracts() if contract.get("source_modules") == ["apps"]
    )
    parts = {path.parent.name for path in (ROOT / "gpu_workers").glob("*/__init__.py")}
    parts |= {path.stem for path in (ROOT / "gpu_workers").glob("*.py")} - {"__init__"}
    assert {name.removeprefix("gpu_workers.") for name in forbidden} - {"torch"} == parts - {"contracts"}
