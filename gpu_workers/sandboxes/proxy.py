"""The one way out of a sandbox: an HTTP and CONNECT proxy of the worker, by allow-list, every connection recorded.

The server inside opens the listening socket in the sandbox's own network namespace and hands it to the worker, which
accepts here. So nothing inside carries the traffic, and the namespace itself stays without any interface but loopback.
"""

import asyncio
import contextlib
import ipaddress
import socket
import time
from collections.abc import Callable

from gpu_workers.contracts.addresses import Address, embedded
from gpu_workers.contracts.environment import Endpoint
from gpu_workers.contracts.groups import NetworkEvent, NetworkLog
from gpu_workers.sandboxes.http_head import Refusal, body_length, find_endpoint, parse_head, request_head
from gpu_workers.sandboxes.reach import Reach, ReachError

MAX_HEAD = 16 * 2**10
MAX_CONNECTIONS = 32
MAX_EVENTS = 200
MAX_BYTES = 512 * 2**20  # of one sandbox, both ways together
HEAD_SECONDS = 10.0
CONNECT_SECONDS = 15.0
ANSWER_SECONDS = 60.0  # after the near side has said all it had to say
CHUNK = 65_536


class Proxy:
    """The proxy of one sandbox. `note` gets a line for its log. Lives in the event loop that started it."""

    def __init__(self, reach: Reach, note: Callable[[str], None]) -> None:
        self.log = NetworkLog()
        self._reach = reach
        self._note = note
        self._made = time.monotonic()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, listener: socket.socket) -> None:
        """Serve on a listening socket, which it owns from now on."""
        listener.setblocking(False)
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=MAX_HEAD)

    async def serve(self, connection: socket.socket) -> None:
        """Serve one connection that something else has accepted, which it owns from now on."""
        await self._accept(*await asyncio.open_connection(sock=connection, limit=MAX_HEAD))

    async def close(self) -> None:
        """End every connection. Safe to repeat."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        event = NetworkEvent(host="", port=0, allowed=False, started_seconds=time.monotonic() - self._made)
        try:
            if len(self._connections) > MAX_CONNECTIONS:
                raise Refusal("503 Service Unavailable", f"more than {MAX_CONNECTIONS} connections at once")
            await self._answer(reader, writer, event)
        except Refusal as refusal:
            event.reason = str(refusal)
            body = f"{refusal}\n".encode(errors="replace")
            head = f"HTTP/1.1 {refusal.status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
            with contextlib.suppress(OSError):
                writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError) as error:
            event.reason = event.reason or f"connection lost: {error or type(error).__name__}"
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            self._connections.discard(task)
            event.duration_seconds = time.monotonic() - self._made - event.started_seconds
            self._record(event)
            writer.close()

    def _record(self, event: NetworkEvent) -> None:
        log = self.log
        log.num_allowed += event.allowed
        log.num_refused += not event.allowed
        if len(log.events) < MAX_EVENTS:
            log.events.append(event)
            where = f"{event.host}:{event.port}" if event.host else "no host"
            if event.allowed:
                how = f"at {event.address}, {event.sent_bytes} bytes sent, {event.received_bytes} received"
                self._note(f"network: {where} {how}{': ' + event.reason if event.reason else ''}")
            else:
                self._note(f"network: {where} refused: {event.reason}")

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, event: NetworkEvent) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
        except (TimeoutError, asyncio.LimitOverrunError) as error:
            raise Refusal("400 Bad Request", "no complete request head") from error
        method, target, headers = parse_head(head)
        endpoint, path = find_endpoint(method, target)
        body = -1 if method == "CONNECT" else body_length(headers)
        event.host, event.port = endpoint.host, endpoint.port
        try:
            self._reach.check_endpoint(endpoint)
            upstream_reader, upstream = await self._connect(endpoint, event)
        except ReachError as error:
            raise Refusal("403 Forbidden", str(error)) from error
        event.allowed = True
        try:
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                upstream.write(request_head(method, path, endpoint, headers))
            await self._pump_both(reader, writer, upstream_reader, upstream, event, body)
        finally:
            upstream.transport.abort()

    async def _connect(
        self, endpoint: Endpoint, event: NetworkEvent
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to an address that was checked: the name is looked up once, so it cannot change in between."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                address = await self._address(endpoint)
                event.address = str(address)
                return await asyncio.open_connection(str(address), endpoint.port, limit=CHUNK)
        except TimeoutError as error:
            raise Refusal("504 Gateway Timeout", f"{endpoint} does not answer") from error
        except OSError as error:
            raise Refusal("502 Bad Gateway", f"{endpoint} cannot be reached: {error.strerror or error}") from error

    async def _address(self, endpoint: Endpoint) -> Address:
        """The first address of a name that may be connected to. Raises ReachError, OSError."""
        try:
            addresses = [ipaddress.ip_address(endpoint.host)]
        except ValueError:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
            addresses = [ipaddress.ip_address(str(item[4][0]).partition("%")[0]) for item in found]
        problem = ReachError(f"{endpoint} has no address")
        for address in addresses:
            try:
                self._reach.check_address(endpoint, address, is_own=is_own_address(address))
            except ReachError as error:
                problem = error
            else:
                return address
        raise problem

    async def _pump_both(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream_reader: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
        event: NetworkEvent,
        body: int,
    ) -> None:
        """Copy both ways until the far side ends or either is lost. `body`: bytes to send on; -1: all there are."""

        async def up() -> None:
            left = body
            while left and (data := await reader.read(CHUNK if left < 0 else min(CHUNK, left))):
                self._count(event, len(data), sent=True)
                left -= len(data) if left > 0 else 0
                upstream.write(data)
                await upstream.drain()
            if left > 0:
                raise ConnectionAbortedError("the request's body ended early")
            if left < 0 and upstream.can_write_eof():
                upstream.write_eof()

        async def down() -> None:
            while data := await upstream_reader.read(CHUNK):
                self._count(event, len(data), sent=False)
                writer.write(data)
                await writer.drain()

        sending, receiving = asyncio.ensure_future(up()), asyncio.ensure_future(down())
        try:
            await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                sending.result()
                await asyncio.wait({receiving}, timeout=ANSWER_SECONDS)
            if receiving.done():
                receiving.result()
        finally:
            sending.cancel()
            receiving.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)

    def _count(self, event: NetworkEvent, num_bytes: int, *, sent: bool) -> None:
        if sent:
            event.sent_bytes += num_bytes
            self.log.sent_bytes += num_bytes
        else:
            event.received_bytes += num_bytes
            self.log.received_bytes += num_bytes
        if self.log.sent_bytes + self.log.received_bytes > MAX_BYTES:
            event.reason = f"more than {MAX_BYTES} bytes went through this sandbox's proxy"
            raise ConnectionAbortedError(event.reason)


def is_own_address(address: Address) -> bool:
    """Whether this host would answer itself there: the kernel then sends from that very address. Nothing is sent."""
    real = embedded(address)
    family = socket.AF_INET if isinstance(real, ipaddress.IPv4Address) else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(real), 9))
        except OSError:
            return False  # no way there, so none to itself
        return ipaddress.ip_address(probe.getsockname()[0]) == real
