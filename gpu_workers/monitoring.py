"""Watches the engines and reports how busy the fleet is while it works; runs beside the fleet queue's worker."""

import asyncio
import logging
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from gpu_workers.contracts.messages import WorkerSample
from gpu_workers.contracts.seams import Reporter, RolloutEngine, WorkerError
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.reporting import new_report

PERIOD_SECONDS = 5.0
_SMI_SECONDS = 3.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Reading:
    """Counters of one engine at one moment."""

    at: float
    metrics: dict[str, float]


class EngineMonitor(threading.Thread):
    """Reads every engine each period; reports kind "sample" with source "engine" while tokens are sampled."""

    def __init__(self, urls: Sequence[str], reporter: Reporter, period_seconds: float = PERIOD_SECONDS) -> None:
        super().__init__(name="engine-monitor", daemon=True)
        self._urls = urls
        self._reporter = reporter
        self._period = period_seconds
        self._last: dict[str, _Reading] = {}
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(self._period):
            try:
                metrics = asyncio.run(self._read_all())
                if metrics.get("tokens_per_second"):
                    sample = WorkerSample(source="engine", metrics=metrics, time=time.time())
                    self._reporter.send(new_report("sample", sample))
            except Exception:  # thread edge: a measurement that fails must not end the measuring
                logger.exception("engines could not be measured")

    async def _read_all(self) -> dict[str, float]:
        """Over the fleet: sums of rates and requests, means of shares."""
        rows = []
        for url in self._urls:
            engine = SGLangEngine(url)
            try:
                rows.append(await self._read(url, engine))
            except WorkerError as error:
                logger.debug("engine %s: %s", url, error)
            finally:
                await engine.close()
        rows = [row for row in rows if row]
        if not rows:
            return {}
        return {
            name: sum(row[name] for row in rows if name in row) / (len(rows) if name.endswith("_share") else 1)
            for name in {name for row in rows for name in row}
        }

    async def _read(self, url: str, engine: RolloutEngine) -> dict[str, float]:
        """Empty on the first reading: rates need two."""
        now = _Reading(time.monotonic(), await engine.metrics())
        before, self._last[url] = self._last.get(url), now
        return between(before.metrics, now.metrics, now.at - before.at) if before else {}


def host_usage() -> dict[str, float]:
    """Shares in use of this host's processors, since the last call, and of its GPUs, by nvidia-smi."""
    usage = {"host/cpu_busy_share": psutil.cpu_percent() / 100}
    program = shutil.which("nvidia-smi")
    if program is None:
        return usage
    query = [program, "--query-gpu=utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=_SMI_SECONDS, check=True)
        return usage | gpu_shares(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        logger.debug("nvidia-smi: %s", error)
        return usage


def gpu_shares(text: str) -> dict[str, float]:
    """Means over the GPUs of nvidia-smi's lines: utilisation in %, MiB used, MiB there are. Raises ValueError."""
    rows = [[float(word) for word in line.split(",")] for line in text.splitlines() if line.strip()]
    if not rows:
        return {}
    return {
        "host/gpu_busy_share": sum(busy for busy, _, _ in rows) / len(rows) / 100,
        "host/gpu_memory_share": sum(used / total for _, used, total in rows) / len(rows),
    }


def between(before: dict[str, float], after: dict[str, float], seconds: float) -> dict[str, float]:
    """Rates of one engine between two readings; a counter that fell is of a restarted engine and counts from zero."""

    def rate(name: str) -> float:
        grown = after[name] - before.get(name, 0.0)
        return (after[name] if grown < 0 else grown) / seconds

    values = {}
    if "sglang:generation_tokens_total" in after:
        values["tokens_per_second"] = rate("sglang:generation_tokens_total")
    if "process_cpu_seconds_total" in after:  # the embedded engine tells it
        values["busy_share"] = rate("process_cpu_seconds_total")
    for ours, theirs in (
        ("running_requests", "sglang:num_running_reqs"),
        ("queued_requests", "sglang:num_queue_reqs"),
        ("cache_hit_share", "sglang:cache_hit_rate"),
    ):
        if theirs in after:
            values[ours] = after[theirs]
    return values
