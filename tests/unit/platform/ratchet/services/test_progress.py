"""A slow start says every ten seconds what it waits for."""

import pytest

from ratchet.services import progress
from ratchet.services.progress import Waiting


def test_it_speaks_every_ten_seconds_however_often_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [100.0], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    waiting = Waiting("engine to answer", said.append)
    for now[0] in (100.0, 109.9, 110.0, 112.0, 119.9, 120.5, 151.0, 152.0, 160.0):
        waiting.look()
    assert said == [f"Waiting for engine to answer, {seconds} s so far …" for seconds in (10, 20, 51, 60)]
