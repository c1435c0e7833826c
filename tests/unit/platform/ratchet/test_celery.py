"""The control plane's Celery app: JSON only, every job has its queue, ticks never pile up."""

import pytest
from celery.worker.control import Panel

from gpu_workers.contracts import queues
from ratchet.celery import app


def test_messages_are_json_only() -> None:
    assert app.conf.accept_content == ["json"]
    assert app.conf.task_serializer == "json"
    assert app.conf.task_acks_late and app.conf.task_ignore_result


@pytest.mark.parametrize("job", [name for name in dir(queues) if name.startswith("JOB_")])
def test_every_job_has_its_queue(job: str) -> None:
    name = getattr(queues, job)
    queue = app.amqp.router.route({}, name)["queue"].name
    expected = {"ratchet.ingest_report": "ingest", "ratchet.heartbeat": "heartbeat", "ratchet.rollout_group": "rollout"}
    expected |= {"ratchet.verify_tasks": "verify", "ratchet.train_run": "train", "ratchet.install_policy": "fleet"}
    expected |= {"ratchet.reproduce_episode": "rollout", "ratchet.probe_tasks": "verify"}
    expected |= {"ratchet.measure_verifier": "verify", "ratchet.ingest_points": "ingest"}
    assert queue == expected[name]


def test_what_is_told_to_rollout_workers_is_no_error_here() -> None:
    assert Panel.data[queues.SIGNAL_GROUPS]


def test_ticks_are_known_jobs_that_expire_within_their_period() -> None:
    app.loader.import_default_modules()
    sent = {entry["task"] for entry in app.conf.beat_schedule.values()}
    assert sent >= {"apps.runs.jobs.tick", "apps.runs.jobs.reap_leases", "apps.evaluations.jobs.tick"}
    for entry in app.conf.beat_schedule.values():
        assert entry["task"] in app.tasks
        assert entry["options"]["queue"] == queues.CONTROL
        assert 0 < entry["options"]["expires"] <= entry["schedule"]
