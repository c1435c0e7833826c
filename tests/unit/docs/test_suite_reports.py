"""The guide to suite reports names every option with its default, and every finding."""

import re
from pathlib import Path

import msgspec

from apps.tasks.reports.attempts import SuiteAttempts
from apps.tasks.reports.building import build_draft, finish_body
from apps.tasks.reports.options import ReportOptions

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "suite-reports.md").read_text()


def rows(heading: str) -> dict[str, str]:
    """First and second cell of the table below a heading; several names in one cell are several rows."""
    table = GUIDE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    return {name: second.strip() for first, second in lines for name in re.findall(r"`(\w+)`", first)}


def test_every_option_is_there_with_its_default() -> None:
    defaults = msgspec.to_builtins(ReportOptions())
    assert {name: str(value).lower() for name, value in defaults.items()} == rows("Options")


def test_every_finding_is_there() -> None:
    body = finish_body(build_draft([], SuiteAttempts(), ReportOptions()), [], SuiteAttempts())
    assert {finding.name for finding in body.findings} == set(rows("Findings"))
