"""An install's answer becomes points of its run: pause, bytes, density, duration."""

from apps.metrics.reading import read_series
from apps.runs.models import FleetInstall
from apps.runs.services import installs
from gpu_workers.contracts.messages import PolicyInstalled


def newest(run, name: str) -> float | None:
    found = read_series(run, [name], every_point=True).series
    return float(found[0].values[-1]) if found else None


def answered(run, version: int, **answer: object) -> None:
    row = FleetInstall.objects.create(run=run, version=version, attempt=1)
    body = PolicyInstalled(job_id=str(row.pk), ok=True, engines=["e"], **answer)
    installs.apply_answer(row, body)


def test_what_an_update_cost(run):
    answered(run, 3, duration_seconds=2.5, pause_seconds=0.25, num_bytes=1234, density=0.004)
    found = {
        name: newest(run, f"fleet/{name}")
        for name in ("install_seconds", "pause_seconds", "update_bytes", "update_density", "policy_version")
    }
    assert found == {
        "install_seconds": 2.5,
        "pause_seconds": 0.25,
        "update_bytes": 1234.0,
        "update_density": 0.004,
        "policy_version": 3.0,
    }


def test_what_was_not_counted_is_no_point(run):
    answered(run, 1, num_bytes=10)
    assert newest(run, "fleet/update_density") is None
    assert newest(run, "fleet/pause_seconds") is None
