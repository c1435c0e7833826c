"""The guide of verifiers says what the code does."""

import json
import re
from pathlib import Path

from gpu_workers.contracts.enums import Verdict
from gpu_workers.verifiers.registry import KINDS
from gpu_workers.verifiers.suite import NEVER_TAKEN

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "verifiers.md").read_text()


def test_every_kind_and_setting_is_in_the_guide_and_no_other() -> None:
    rows = {
        cells[1].strip().strip("`"): set(re.findall(r"`(\w+)`", cells[3]))
        for line in GUIDE.partition("## Kinds")[2].partition("`python -m")[0].splitlines()
        if (cells := line.split("|")) and line.startswith("| `")
    }
    assert rows == {str(kind): set(what.config.__struct_fields__) for kind, what in KINDS.items()}


def test_every_verdict_and_every_file_never_taken_is_named() -> None:
    assert all(f"| `{verdict}` |" in GUIDE for verdict in Verdict)
    assert all(f"`{name}`" in GUIDE or name == ".pytest.ini" for name in NEVER_TAKEN)


def test_the_example_of_the_check_is_json() -> None:
    example = json.loads(re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)[0])
    assert set(example) == {"verifier", "reference", "cases"}
