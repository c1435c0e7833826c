"""Messages on a real broker: what the control plane puts, the trainer's own consumer reads."""

import pytest
from celery import Celery

from apps.runs import messaging
from gpu_workers.contracts import queues
from gpu_workers.contracts.messages import (
    BatchGroup,
    BatchMessage,
    PolicyRef,
    RolloutJob,
    Sampling,
    StopMessage,
    TrainJob,
)
from gpu_workers.trainer.consumer import KombuBatches
from ratchet.services.home import broker_url


@pytest.fixture
def broker(redis_url, monkeypatch):
    url = broker_url(redis_url)
    app = Celery("test", broker=url)
    app.conf.update(task_serializer="json", accept_content=["json"], task_ignore_result=True)
    monkeypatch.setattr(messaging, "app", app)
    yield url
    app.close()


def test_the_trainer_reads_batches_in_order_and_the_stop(broker):
    for index in (1, 0):
        groups = [BatchGroup(group_id="g", uri="u", age=1)]
        messaging.send_batch(BatchMessage(run_id="r", attempt=2, batch_id=f"b{index}", index=index, groups=groups))
    messaging.send_stop("r", 2, StopMessage(reason="no more"))
    source = KombuBatches(broker, "r", 2)
    try:
        for index in (0, 1):
            delivery = source.next(index)
            assert delivery.message.batch_id == f"b{index}"
            assert delivery.message.groups[0].age == 1
            delivery.acknowledge()
        assert source.next(2).stop.reason == "no more"
    finally:
        source.close()


def test_trainer_jobs_that_wait_are_counted(broker):
    assert messaging.count_waiting_trainings() == 0
    for attempt in (1, 2):
        messaging.send_train(TrainJob(run_id="r", attempt=attempt, token=5, spec={}, base_model="m"))
    assert messaging.count_waiting_trainings() == 2
    with messaging.app.connection_for_read() as connection, connection.SimpleQueue(queues.TRAIN) as queue:
        queue.get(timeout=5).ack()
    assert messaging.count_waiting_trainings() == 1


def test_where_workers_reserve_jobs_nobody_says_how_many_wait(monkeypatch):
    monkeypatch.setattr(messaging, "app", Celery("test", broker="memory://"))
    assert messaging.count_waiting_trainings() is None


def test_a_rollout_job_is_one_plain_json_message(broker):
    job = RolloutJob(
        group_id="g", attempt=1, purpose="train", task="objects/aa/bb", group_size=4, policy=PolicyRef(), deadline=1.0,
        sampling=Sampling(seed=3),
    )  # fmt: skip
    messaging.send_rollout(job)
    with messaging.app.connection_for_read() as connection, connection.SimpleQueue(queues.ROLLOUT) as queue:
        message = queue.get(timeout=30)
        message.ack()
    assert message.headers["task"] == queues.JOB_ROLLOUT
    assert message.payload[0][0]["sampling"]["seed"] == 3
