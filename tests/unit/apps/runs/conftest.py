"""Fixtures of run tests: scripted workers."""

import pytest

from tests.support.evaluations import Workers


@pytest.fixture
def workers(monkeypatch) -> Workers:
    return Workers(monkeypatch)
