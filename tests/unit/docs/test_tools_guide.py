"""The example of the tools guide is a tool, and does what the guide says."""

import asyncio
import re
from pathlib import Path

import msgspec
import pytest

from gpu_workers.contracts.builtin_tools import SCHEMAS
from gpu_workers.contracts.enums import ToolOutcome
from gpu_workers.contracts.groups import ToolCallRecord
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.tools.__main__ import main

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "tools.md").read_text()


async def test_the_example_can_be_checked_as_the_guide_says(tmp_path, capsys) -> None:
    try:
        await BubblewrapBackend().probe()
    except WorkerError as error:
        pytest.skip(str(error))
    path = tmp_path / "cart.py"
    path.write_text(re.search(r"```python\n(.*?)```", GUIDE, re.DOTALL)[1])
    calls = re.findall(r"--call '([^']+)'", re.search(r"tools check (.*)", GUIDE)[1])
    options = [word for call in calls for word in ("--call", call)]
    assert await asyncio.to_thread(main, ["check", str(path), *options]) == 0
    out = capsys.readouterr().out
    assert len(calls) == 2 and '{"total": 2}' in out and '{"total": 3}' in out


def test_tools_outcomes_and_fields_are_all_in_the_guide() -> None:
    words = set(re.findall(r"`([a-z_]+)`", GUIDE))
    assert set(SCHEMAS) <= words
    assert {argument for schema in SCHEMAS.values() for argument in schema["properties"]} <= words
    assert {str(outcome) for outcome in ToolOutcome} <= words
    fields = {field.name for field in msgspec.structs.fields(ToolCallRecord)} - {"opened_decoys", "opened_beside"}
    assert fields <= words, fields - words
