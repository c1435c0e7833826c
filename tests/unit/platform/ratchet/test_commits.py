"""What follows a commit fails for itself alone."""

import logging

import pytest
from django.db import transaction

from ratchet.commits import after_commit


def lost(name: str) -> None:
    raise ConnectionError(f"the broker is away from {name}")


@pytest.mark.django_db(transaction=True)
def test_a_call_that_fails_is_logged_by_name_and_ends_nothing(caplog):
    done: list[str] = []
    with caplog.at_level(logging.ERROR), transaction.atomic():
        after_commit(lost, "one")
        after_commit(done.append, "two")
        assert done == []
    assert done == ["two"]
    assert "lost" in caplog.text and "the broker is away from one" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_nothing_follows_what_is_rolled_back():
    done: list[str] = []
    with pytest.raises(ValueError), transaction.atomic():
        after_commit(done.append, "one")
        raise ValueError
    assert done == []
