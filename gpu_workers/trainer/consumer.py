"""The trainer's own batch queue: one attempt's messages in order, acknowledged after the step is durable."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from kombu import Connection, Consumer, Queue

from gpu_workers.contracts.messages import BatchMessage, StopMessage
from gpu_workers.contracts.queues import batch_queue
from gpu_workers.trainer.world import World

PREFETCH = 16
POLL_SECONDS = 1.0
VISIBILITY_TIMEOUT_SECONDS = 12 * 3600  # Redis: a batch may lie here for long before its turn


class BatchSource(Protocol):
    """Where batches come from."""

    def next(self, version: int) -> "Delivery": ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Delivery:
    """One message for the trainer. `acknowledge` only after its step is durable and reported."""

    message: BatchMessage | StopMessage
    acknowledge: Callable[[], None]

    @property
    def stop(self) -> StopMessage | None:
        return self.message if isinstance(self.message, StopMessage) else None


class MessageError(ValueError):
    """A message on the batch queue that is neither a batch nor a stop."""


def parse_message(payload: Any) -> BatchMessage | StopMessage:
    """Decode a payload (JSON text or the plain value)."""
    data = json.loads(payload) if isinstance(payload, (str, bytes)) else payload
    if not isinstance(data, dict):
        raise MessageError(f"expected an object on the batch queue, got {type(data).__name__}")
    try:
        if "stop" in data:
            return msgspec.convert(data, StopMessage)
        return msgspec.convert(data, BatchMessage)
    except msgspec.ValidationError as error:
        raise MessageError(f"batch queue: {error}") from error


class BatchInbox:
    """Orders deliveries by index: pure, no broker. Late and foreign ones are acknowledged at once and dropped.

    A batch whose index lies ahead waits; a stop counts when no batch of the present version is here.
    """

    def __init__(self, run_id: str, attempt: int) -> None:
        self._run_id, self._attempt = run_id, attempt
        self._batches: dict[int, Delivery] = {}
        self._stop: Delivery | None = None
        self.num_dropped = 0

    def put(self, delivery: Delivery, version: int) -> BatchMessage | None:
        """Take a delivery in. Returns a batch that is already part of `version`, for its report to be repeated."""
        message = delivery.message
        if isinstance(message, StopMessage):
            if self._stop is not None:
                self._stop.acknowledge()
            self._stop = delivery
            return None
        foreign = (message.run_id, message.attempt) != (self._run_id, self._attempt)
        if foreign or message.index < version or message.index in self._batches:
            delivery.acknowledge()
            self.num_dropped += 1
            return None if foreign or message.index >= version else message
        self._batches[message.index] = delivery
        return None

    def take(self, version: int) -> Delivery | None:
        """The delivery to act on at `version`, if it is here."""
        if self._stop is not None and isinstance(self._stop.message, StopMessage) and self._stop.message.cancelled:
            return self._stop
        return self._batches.pop(version, None) or self._stop


class KombuBatches:
    """BatchSource over the broker. Lost connections are opened again; unacknowledged messages then come anew."""

    def __init__(
        self,
        broker_url: str,
        run_id: str,
        attempt: int,
        *,
        on_duplicate: Callable[[BatchMessage], None] = lambda message: None,
        on_invalid: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._url, self._name = broker_url, batch_queue(run_id, attempt)
        self._run_id, self._attempt = run_id, attempt
        self._on_duplicate, self._on_invalid = on_duplicate, on_invalid
        self._version = 0
        self._connect()

    def _connect(self) -> None:
        self._inbox = BatchInbox(self._run_id, self._attempt)
        options = {"visibility_timeout": VISIBILITY_TIMEOUT_SECONDS} if "redis" in self._url else {}
        self._connection = Connection(self._url, transport_options=options)
        self._connection.ensure_connection(max_retries=60, interval_start=0.2, interval_step=0.5, interval_max=10)
        self._consumer = Consumer(
            self._connection,
            queues=[Queue(self._name, routing_key=self._name, durable=True)],
            callbacks=[self._receive],
            accept=["json"],
            prefetch_count=PREFETCH,
        )
        self._consumer.consume()

    def _receive(self, body: Any, message: Any) -> None:
        try:
            delivery = Delivery(parse_message(body), message.ack)
        except (MessageError, ValueError) as error:
            message.reject()
            self._on_invalid(str(error))
            return
        duplicate = self._inbox.put(delivery, self._version)
        if duplicate is not None:
            self._on_duplicate(duplicate)

    def next(self, version: int) -> Delivery:
        """Wait for the batch of `version`, or a stop."""
        self._version = version
        while True:
            found = self._inbox.take(version)
            if found is not None:
                return found
            try:
                self._connection.drain_events(timeout=POLL_SECONDS)
            except TimeoutError:
                self._beat()
            except self._connection.recoverable_connection_errors:
                self.close()
                time.sleep(POLL_SECONDS)
                self._connect()

    def _beat(self) -> None:
        if self._connection.supports_heartbeats:
            self._connection.heartbeat_check()

    def close(self) -> None:
        self._connection.release()


class BroadcastBatches:
    """BatchSource of every rank: rank 0 asks the real one, the others hear of it. Only rank 0 acknowledges."""

    def __init__(self, source: BatchSource | None, world: World) -> None:
        self._source, self._world = source, world

    def next(self, version: int) -> Delivery:
        """The same message on every rank."""
        found = self._source.next(version) if self._source is not None else None
        local: BatchMessage | StopMessage | None = found.message if found is not None else None
        message = self._world.broadcast(local)
        assert isinstance(message, (BatchMessage, StopMessage))
        return found or Delivery(message, lambda: None)

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
