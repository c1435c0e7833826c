"""Points on the wire: packed columns, values that JSON has not, and where a process tells Prometheus."""

import math
import socket
import urllib.request

import msgspec

from gpu_workers.contracts import exporter
from gpu_workers.contracts.messages import StepReport
from gpu_workers.contracts.points import body_of, pack_points, read_values


def test_points_are_packed_by_column():
    packed = pack_points([("a", 1, 0.5, 10.0), ("b", -2, math.inf, 11.0), ("a", 3, math.nan, 12.0)])
    assert packed["names"] == ["a", "b"]
    assert packed["series"] == bytes([0, 0, 1, 0, 0, 0])
    assert packed["steps"][8:16] == (-2).to_bytes(8, "little", signed=True)


def test_metrics_that_are_not_finite_travel_in_reports():
    sent = StepReport(version=1, metrics={"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.0})
    body = body_of(sent)
    assert body["metrics"] == {"a": "nan", "b": "inf", "c": "-inf", "d": 0.0}
    read = read_values(body["metrics"] | {"old": None, "text": "abc"})
    assert math.isnan(read["a"]) and math.isnan(read["old"])
    assert (read["b"], read["c"], read["d"], read["text"]) == (math.inf, -math.inf, 0.0, "abc")
    assert msgspec.convert(body | {"metrics": {"b": read["b"]}}, StepReport).metrics == {"b": math.inf}


def test_a_process_answers_prometheus_where_it_is_told(monkeypatch):
    with socket.socket() as taken, socket.socket() as probe:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
        probe.close()
        monkeypatch.setenv(exporter.VARIABLE, f"127.0.0.1:{taken.getsockname()[1]}")
        assert exporter.serve() == ""  # taken: the process works on without
        monkeypatch.setenv(exporter.VARIABLE, f"127.0.0.1:{free}")
        assert exporter.serve() == f"127.0.0.1:{free}"
    with urllib.request.urlopen(f"http://127.0.0.1:{free}/metrics", timeout=5) as answer:
        assert b"ratchet_jobs_total" in answer.read()
    monkeypatch.setenv(exporter.VARIABLE, "")
    assert exporter.serve() == ""
