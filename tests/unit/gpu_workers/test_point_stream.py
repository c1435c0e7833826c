"""A stream of points: numbered batches, sent by a thread, none lost while the broker is away."""

import math
import threading

from kombu.exceptions import OperationalError

from gpu_workers import reporting
from gpu_workers.contracts.points import PointBatch
from gpu_workers.reporting import PointStream


class Sink:
    def __init__(self, failures: int = 0) -> None:
        self.batches: list[PointBatch] = []
        self.failures = failures

    def points(self, batch: PointBatch) -> None:
        if self.failures:
            self.failures -= 1
            raise OperationalError("broker away")
        self.batches.append(batch)


def test_batches_are_numbered_and_hold_every_point_once():
    sink = Sink()
    stream = PointStream(sink, run_id="r", source="s", attempt=2, token=7, period_seconds=0.01, most=10)
    threads = [
        threading.Thread(target=lambda n=n: [stream.log(i, {f"m{n}": math.nan}, at=1.0) for i in range(50)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stream.close()
    assert [batch.seq for batch in sink.batches] == list(range(len(sink.batches)))
    assert {(b.run_id, b.source, b.attempt, b.token) for b in sink.batches} == {("r", "s", 2, 7)}
    assert sum(len(batch.steps) // 8 for batch in sink.batches) == 200
    assert max(len(batch.steps) // 8 for batch in sink.batches) <= 10


def test_a_batch_waits_for_the_broker_and_keeps_its_number(monkeypatch):
    monkeypatch.setattr(reporting, "_AWAY_SECONDS", 0.01)
    sink = Sink(failures=3)
    stream = PointStream(sink, run_id="r", source="s", period_seconds=0.01)
    stream.log(1, {"a": 1.0})
    while not sink.batches:
        pass
    stream.log(2, {"a": 2.0})
    stream.close()
    assert [batch.seq for batch in sink.batches] == [0, 1]
