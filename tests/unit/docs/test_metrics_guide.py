"""The guide to metrics, audit and retention says what the code does."""

from apps.metrics.journal import MAX_SERIES
from apps.metrics.news import MAX_POINTS
from apps.metrics.reading import EVERY_POINT_LIMIT
from apps.retention.rules import RULES
from ratchet.env import ROOT

GUIDE = (ROOT / "docs" / "guides" / "metrics-audit-retention.md").read_text()


def test_numbers_are_those_of_the_code():
    for number in (MAX_SERIES, MAX_POINTS, EVERY_POINT_LIMIT):
        assert f"{number:,}" in GUIDE


def test_every_rule_of_retention_is_there():
    table = GUIDE.split("## What is kept how long")[1].split("\n\n")[1]
    kept = [line.split("|")[2] for line in table.splitlines()[2:]]
    assert len(kept) == len(RULES)
    for rule, words in zip(RULES, kept, strict=True):
        expected = {None: "for ever", 0: "until they expire"}.get(rule.days, f"{rule.days} day")
        assert expected in words, rule.name
