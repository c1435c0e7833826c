"""Counters and histograms of the engine under SGLang's metric names."""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from gpu_workers.engines.embedded.request import Request

_LATENCY_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600)
_TOKEN_BUCKETS = (
    *(0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8),
    *(1, 1.5, 2, 3, 4, 6, 8, 12, 20, 30, 60),
)
_THROUGHPUT_WINDOW_SECONDS = 1.0


class EngineMetrics:
    """Written by the engine's thread, read by the server's."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # CPU seconds and memory of this process
        self.labels = {"model_name": model_name}
        self.e2e = self._histogram("e2e_request_latency_seconds", "Request latency", _LATENCY_BUCKETS)
        self.ttft = self._histogram("time_to_first_token_seconds", "Time to the first token", _LATENCY_BUCKETS)
        self.itl = self._histogram("inter_token_latency_seconds", "Gap between two tokens of a request", _TOKEN_BUCKETS)
        self.queue = self._histogram("queue_time_seconds", "Time in the waiting queue", _LATENCY_BUCKETS)
        self.prompt = self._counter("prompt_tokens", "Prompt tokens computed (cached ones are not)")
        self.generated = self._counter("generation_tokens", "Tokens sampled")
        self.cached = self._counter("cached_tokens", "Prompt tokens found in the prefix cache")
        self.requests = self._counter("num_requests", "Requests finished")
        self.aborted = self._counter("num_aborted_requests", "Requests aborted")
        self.running = self._gauge("num_running_reqs", "Requests in the decode batch")
        self.queued = self._gauge("num_queue_reqs", "Requests waiting")
        self.used = self._gauge("num_used_tokens", "Tokens held in the cache")
        self.usage = self._gauge("token_usage", "Share of the token capacity in use by requests")
        self.hit_rate = self._gauge("cache_hit_rate", "Share of prompt tokens found cached")
        self.throughput = self._gauge("gen_throughput", "Sampled tokens per second, last second")
        self._num_prompt = self._num_cached = self._window_tokens = 0
        self._window_start = time.perf_counter()

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        metric = Histogram(f"sglang:{name}", text, list(self.labels), registry=self.registry, buckets=buckets)
        return metric.labels(**self.labels)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"sglang:{name}", text, list(self.labels), registry=self.registry).labels(**self.labels)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"sglang:{name}", text, list(self.labels), registry=self.registry).labels(**self.labels)

    def queue_seconds(self, seconds: float) -> None:
        self.queue.observe(seconds)

    def prompt_tokens(self, count: int) -> None:
        self.prompt.inc(count)
        self._num_prompt += count

    def token(self, request: Request, now: float) -> None:
        """A token was sampled for `request`."""
        if request.first_token_at:
            self.itl.observe(now - request.last_token_at)
        else:
            request.first_token_at = now
            self.ttft.observe(now - request.created_at)
            self._num_cached += request.num_cached_tokens or 0
            self.cached.inc(request.num_cached_tokens or 0)
        request.last_token_at = now
        self.generated.inc()
        self._window_tokens += 1

    def finished(self, request: Request) -> None:
        self.requests.inc()
        if (request.finish_reason or {}).get("type") == "abort":
            self.aborted.inc()
        self.e2e.observe(request.finished_at - request.created_at)

    def observe_load(self, *, num_running: int, num_waiting: int, num_used: int, share_used: float) -> None:
        """Called after every step."""
        self.running.set(num_running)
        self.queued.set(num_waiting)
        self.used.set(num_used)
        self.usage.set(share_used)
        total = self._num_prompt + self._num_cached
        self.hit_rate.set(self._num_cached / total if total else 0.0)
        now = time.perf_counter()
        if now - self._window_start >= _THROUGHPUT_WINDOW_SECONDS or not num_running:
            self.throughput.set(self._window_tokens / max(now - self._window_start, 1e-3))
            self._window_start, self._window_tokens = now, 0

    def render(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self.registry)
