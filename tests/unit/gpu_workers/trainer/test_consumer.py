"""The batch queue: order, duplicates, foreign messages, stops, and acknowledgement after the work."""

from collections.abc import Callable

import pytest
from kombu import Connection

from gpu_workers.contracts.groups import jsonable
from gpu_workers.contracts.messages import BatchGroup, BatchMessage, StopMessage
from gpu_workers.contracts.queues import batch_queue
from gpu_workers.trainer.consumer import BatchInbox, Delivery, KombuBatches, MessageError, parse_message


def batch(index: int, *, run_id: str = "r", attempt: int = 1) -> BatchMessage:
    groups = [BatchGroup(group_id="g", uri="objects/aa/aa", age=0)]
    return BatchMessage(run_id=run_id, attempt=attempt, batch_id=f"b{index}", index=index, groups=groups)


class Acks:
    def __init__(self) -> None:
        self.names: list[str] = []

    def of(self, name: str) -> Callable[[], None]:
        return lambda: self.names.append(name)


def test_messages_are_recognised_or_refused():
    assert parse_message(jsonable(batch(3))) == batch(3)
    assert parse_message('{"stop": true, "cancelled": true}') == StopMessage(cancelled=True)
    with pytest.raises(MessageError, match="index"):
        parse_message(jsonable(batch(3)) | {"index": "three"})
    with pytest.raises(MessageError, match="an object"):
        parse_message([1, 2])


def test_batches_come_out_in_order_of_their_index():
    inbox, acks = BatchInbox("r", 1), Acks()
    for index in (2, 0, 1):
        inbox.put(Delivery(batch(index), acks.of(str(index))), 0)
    assert inbox.take(3) is None
    taken = [inbox.take(version) for version in (0, 1, 2)]
    assert [d.message.index for d in taken] == [0, 1, 2]
    assert acks.names == []


def test_a_duplicate_is_dropped_and_handed_back_for_its_report():
    inbox, acks = BatchInbox("r", 1), Acks()
    assert inbox.put(Delivery(batch(0), acks.of("late")), 1) == batch(0)
    inbox.put(Delivery(batch(1), acks.of("first")), 1)
    assert inbox.put(Delivery(batch(1), acks.of("again")), 1) is None
    assert acks.names == ["late", "again"]
    assert inbox.num_dropped == 2


def test_a_foreign_batch_is_never_trained():
    inbox, acks = BatchInbox("r", 2), Acks()
    assert inbox.put(Delivery(batch(0, attempt=1), acks.of("old attempt")), 0) is None
    assert inbox.put(Delivery(batch(0, run_id="other"), acks.of("other run")), 0) is None
    assert inbox.take(0) is None
    assert acks.names == ["old attempt", "other run"]


def test_a_stop_waits_for_the_batches_before_it_but_a_cancel_does_not():
    inbox, acks = BatchInbox("r", 1), Acks()
    inbox.put(Delivery(batch(0), acks.of("0")), 0)
    inbox.put(Delivery(StopMessage(), acks.of("stop")), 0)
    assert inbox.take(0).message == batch(0)
    assert inbox.take(1).stop == StopMessage()
    inbox.put(Delivery(batch(1), acks.of("1")), 1)
    inbox.put(Delivery(StopMessage(cancelled=True), acks.of("cancel")), 1)
    assert inbox.take(1).stop.cancelled
    assert acks.names == ["stop"]  # the first stop, replaced


def send(url: str, payload: object, attempt: int = 1) -> None:
    with Connection(url) as connection, connection.SimpleQueue(batch_queue("r", attempt)) as queue:
        queue.put(payload, serializer="json")


def test_over_a_real_broker_what_is_not_acknowledged_comes_again(redis_url: str):
    broker_url = redis_url.replace("unix://", "redis+socket://")
    send(broker_url, jsonable(batch(1)))
    send(broker_url, {"nonsense": 1})
    send(broker_url, jsonable(batch(0)))
    invalid: list[str] = []
    duplicates: list[BatchMessage] = []
    first = KombuBatches(broker_url, "r", 1, on_invalid=invalid.append)
    assert first.next(0).message == batch(0)  # then the process dies without acknowledging
    first.close()
    assert len(invalid) == 1
    second = KombuBatches(broker_url, "r", 1, on_duplicate=duplicates.append)
    for version in (0, 1):
        delivery = second.next(version)
        assert delivery.message == batch(version)
        delivery.acknowledge()
    send(broker_url, jsonable(batch(0)))
    send(broker_url, jsonable(StopMessage()))
    stop = second.next(2)
    stop.acknowledge()
    second.close()
    assert stop.stop is not None
    assert duplicates == [batch(0)]
    with Connection(broker_url) as connection:
        queue = connection.SimpleQueue(batch_queue("r", 1))
        with pytest.raises(queue.Empty):
            queue.get(block=False)
        queue.close()
