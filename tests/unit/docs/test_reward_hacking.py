"""The guide to reward hacking names every pattern and every rule, and no other."""

import re
from fnmatch import fnmatch
from pathlib import Path

from gpu_workers.verifiers.detectors.catalogue import RULES

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "reward-hacking.md"
ROW = re.compile(r"^\| (\d+) \|[^|]*\|[^|]*\|([^|]*)\|[^|]*\|$", re.MULTILINE)


def test_every_pattern_has_its_rules() -> None:
    rows = {int(number): re.findall(r"`([\w.*]+)`", rules) for number, rules in ROW.findall(GUIDE.read_text())}
    assert list(rows) == list(range(1, 19))
    for rule in RULES:
        assert any(fnmatch(rule.id, name) for name in rows[rule.pattern]), f"{rule.id} is not in row {rule.pattern}"
    for names in rows.values():
        for name in names:
            assert any(fnmatch(rule.id, name) for rule in RULES), f"no rule is called {name}"
