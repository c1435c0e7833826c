"""What the ingest process tells Prometheus of points."""

import logging
import time

from prometheus_client import Counter, Histogram

from gpu_workers.contracts.points import PointBatch

logger = logging.getLogger(__name__)

POINTS = Counter("ratchet_ingested_points", "Points of workers, by what became of their batch", ["outcome"])
BATCHES = Counter("ratchet_ingested_batches", "Batches of points, by what became of them", ["outcome"])
_FAST, _SLOW = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5), (0.01, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 300)
SECONDS = Histogram("ratchet_ingest_batch_seconds", "From message taken to batch committed", buckets=_FAST)
LAG = Histogram("ratchet_ingest_lag_seconds", "From sent, by the worker's clock, to committed", buckets=_SLOW)
_KNOWN = ("stored", "duplicate")


def observe_batch(batch: PointBatch, outcome: str, seconds: float) -> None:
    """Count one batch; a refusal is logged with its reason."""
    label = outcome if outcome in _KNOWN else "refused"
    BATCHES.labels(label).inc()
    POINTS.labels(label).inc(len(batch.steps) // 8)
    SECONDS.observe(seconds)
    LAG.observe(max(0.0, time.time() - batch.sent_at))
    if label == "refused":
        logger.warning("batch %d of %s, run %s refused: %s", batch.seq, batch.source, batch.run_id, outcome)


def count_refusal(reason: str) -> str:
    """A batch that could not even be read."""
    BATCHES.labels("refused").inc()
    logger.warning("a batch of points was refused: %s", reason)
    return reason
