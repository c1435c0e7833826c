"""The fake is refused where it would be dangerous."""

import pytest

from gpu_workers.contracts.seams import WorkerError
from gpu_workers.sandboxes.local import LocalBackend


def test_it_is_refused_in_production(monkeypatch):
    monkeypatch.setenv("RATCHET_ENV", "production")
    with pytest.raises(WorkerError, match="refused in production"):
        LocalBackend()
    assert LocalBackend("test").name == "none"
