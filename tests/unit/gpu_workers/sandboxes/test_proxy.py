"""The way out of a sandbox: by allow-list, to public addresses or those the worker names, each connection told."""

import asyncio
import contextlib
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_workers.contracts.environment import (
    EnvironmentContract,
    Limits,
    Network,
    NetworkAccess,
    NetworkMode,
    parse_endpoint,
)
from gpu_workers.sandboxes import proxy as module
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.sandboxes.host import HostPolicy
from gpu_workers.sandboxes.proxy import Proxy
from gpu_workers.sandboxes.reach import Reach
from tests.unit.gpu_workers.sandboxes.conftest import Site


@contextlib.asynccontextmanager
async def running(reach):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    port, lines = listener.getsockname()[1], []
    made = Proxy(reach, lines.append)
    await made.start(listener)
    try:
        yield made, port, lines
    finally:
        await made.close()


def local(port, *, mode=NetworkMode.ALLOWLIST, private=True):
    here = frozenset({parse_endpoint(f"localhost:{port}")})
    return Reach(mode, allowed=here, private=here if private else frozenset())


async def ask(port, request):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    await writer.drain()
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer


async def finished(proxy):
    while proxy._connections:
        await asyncio.sleep(0.01)
    return proxy.log


async def test_connect_to_a_listed_host(site):
    async with running(local(site)) as (proxy, port, lines):
        inner = b"GET /x HTTP/1.1\r\nHost: any\r\nConnection: close\r\n\r\n"
        answer = await ask(port, f"CONNECT localhost:{site} HTTP/1.1\r\n\r\n".encode() + inner)
        assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK") and b"hello" in answer
        (event,) = (await finished(proxy)).events
        assert (event.host, event.port, event.allowed, event.address) == ("localhost", site, True, "127.0.0.1")
        assert event.sent_bytes == len(inner) and event.received_bytes == proxy.log.received_bytes > 50
        assert (proxy.log.num_allowed, proxy.log.num_refused) == (1, 0)
        assert lines == [f"network: localhost:{site} at 127.0.0.1, {len(inner)} bytes sent, "
                         f"{event.received_bytes} received"]  # fmt: skip


async def test_plain_http_is_asked_for_the_host_that_was_checked(site):
    async with running(local(site)) as (proxy, port, _):
        head = f"POST http://LOCALHOST:{site}/a?b=1 HTTP/1.1\r\nHost: other.org\r\nProxy-Authorization: secret\r\n"
        answer = await ask(port, head.encode() + b"Content-Length: 3\r\n\r\nabcGET http://other.org/ HTTP/1.1\r\n\r\n")
        assert answer.endswith(b"hello")
        assert Site.seen == [("POST", "/a?b=1", f"localhost:{site}", b"abc")]
        assert (await finished(proxy)).num_allowed == 1


@pytest.mark.parametrize(
    ("request_line", "status", "reason"),
    [
        ("CONNECT other.org:443 HTTP/1.1", 403, "not on the contract's allow-list"),
        ("CONNECT localhost:1 HTTP/1.1", 403, "not on the contract's allow-list"),
        ("GET http://other.org/ HTTP/1.1", 403, "not on the contract's allow-list"),
        ("GET http://127.0.0.1:{site}/ HTTP/1.1", 403, "not on the contract's allow-list"),
        ("GET http://localhost:{site}@other.org/ HTTP/1.1", 400, "http://host/path"),
        ("GET https://localhost:{site}/ HTTP/1.1", 400, "http://host/path"),
        ("GET /etc/passwd HTTP/1.1", 400, "http://host/path"),
        ("GET file:///etc/passwd HTTP/1.1", 400, "http://host/path"),
        ("CONNECT localhost HTTP/1.1", 400, "needs a port"),
        ("CONNECT [fe80::1%25eth0]:80 HTTP/1.1", 400, "IPv6"),
        ("GET http://localhost:99999/ HTTP/1.1", 400, "out of range"),
        ("nonsense", 400, "not an HTTP request"),
        ("GET http://localhost:{site}/ HTTP/1.1\r\nTransfer-Encoding: chunked", 411, "Content-Length"),
        ("GET http://localhost:{site}/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2", 400, "one number"),
        ("GET http://localhost:{site}/ HTTP/1.1\r\nX : 1", 400, "not an HTTP request"),
    ],
)
async def test_refusals(site, request_line, status, reason):
    async with running(local(site)) as (proxy, port, lines):
        answer = await ask(port, (request_line.replace("{site}", str(site)) + "\r\n\r\n").encode())
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
        assert reason in answer.decode()
        assert Site.seen == []
        log = await finished(proxy)
        assert (log.num_allowed + log.num_refused, len(lines)) == (1, 1)
        assert reason in log.events[0].reason


async def test_a_name_that_leads_to_a_private_address_is_refused(site):
    for mode in (NetworkMode.ALLOWLIST, NetworkMode.FULL):
        async with running(local(site, mode=mode, private=False)) as (proxy, port, _):
            answer = await ask(port, f"CONNECT localhost:{site} HTTP/1.1\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 403") and b"not a public address" in answer
            answer = await ask(port, f"GET http://localhost:{site}/ HTTP/1.1\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 403") and Site.seen == []
            assert (await finished(proxy)).num_refused == 2


async def test_the_name_is_looked_up_once_and_the_checked_address_is_used(site, monkeypatch):
    """A name server that answers public first and private later gains nothing."""
    answers = iter(["93.184.216.34", "127.0.0.1", "127.0.0.1"])
    opened = []

    async def lookup(host, port, **_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

    async def connect(host, port, **_):
        opened.append(host)
        raise ConnectionRefusedError(111, "Connection refused")

    async with running(Reach(NetworkMode.FULL)) as (proxy, port, _):
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        monkeypatch.setattr(module.asyncio, "open_connection", connect)
        writer.write(b"CONNECT rebind.org:80 HTTP/1.1\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 502")
        writer.close()
        assert opened == ["93.184.216.34"]
        assert (await finished(proxy)).events[0].address == "93.184.216.34"


OWN = """
import asyncio, socket, sys
from gpu_workers.contracts.environment import NetworkMode
from gpu_workers.sandboxes.proxy import Proxy
from gpu_workers.sandboxes.reach import Reach
from tests.unit.gpu_workers.sandboxes.conftest import Site

async def main():
    async def greet(reader, writer):
        writer.write(b"reached")
        writer.close()
    site = await asyncio.start_server(greet, sys.argv[1], 8080)
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = Proxy(Reach(NetworkMode.FULL), lambda line: None)
    port = listener.getsockname()[1]
    await proxy.start(listener)
    asyncio.get_running_loop().getaddrinfo = lookup
    for host in sys.argv[2:]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"CONNECT {host}:8080 HTTP/1.1\\r\\n\\r\\n".encode())
        print((await reader.read()).decode().splitlines()[-1], flush=True)
        writer.close()
    reader, writer = await asyncio.open_connection(sys.argv[1], 8080)
    print("control:", (await reader.read()).decode())
    writer.close()
    await proxy.close()
    site.close()

async def lookup(host, port, **_):
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (sys.argv[1], port))]

asyncio.run(main())
"""


def test_the_hosts_own_public_address_is_refused_under_full():
    """In a network namespace that has one: by number, wrapped, and behind a name that resolves to it."""
    own = "93.184.216.34"
    line = f'ip link set lo up && ip address add {own}/32 dev lo && exec "$@"'
    program = [sys.executable, "-c", OWN, own, own, f"[::ffff:{own}]", "rebind.org"]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", line, "sh", *program],
        capture_output=True, text=True, cwd=Path(__file__).parents[4], timeout=60,
    )  # fmt: skip
    if "unshare" in done.stderr or "not found" in done.stderr:
        pytest.skip(f"no network namespace to try it in: {done.stderr}")
    *refused, control = done.stdout.splitlines()
    assert len(refused) == 3 and all("the worker's own host" in line for line in refused), done
    assert control == "control: reached"


async def test_a_head_without_end_is_refused():
    async with running(Reach(NetworkMode.FULL)) as (_, port, _):
        answer = await ask(port, b"GET http://a.org/ HTTP/1.1\r\nX: " + b"y" * 40_000)
        assert answer.startswith(b"HTTP/1.1 400")


async def test_bytes_and_connections_are_bounded(site, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 40)
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 2)
    async with running(local(site)) as (proxy, port, _):
        answer = await ask(port, f"GET http://localhost:{site}/ HTTP/1.1\r\n\r\n".encode())
        assert not answer.endswith(b"hello")
        assert "bytes went through" in (await finished(proxy)).events[0].reason
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await asyncio.sleep(0.1)
        assert (await ask(port, b"")).startswith(b"HTTP/1.1 503")
        for _, writer in held:
            writer.close()


async def test_closing_ends_open_connections(site):
    async with running(local(site)) as (proxy, port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"CONNECT localhost:{site} HTTP/1.1\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.wait_for(proxy.close(), 30)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()
        assert proxy.log.num_allowed == 1


FETCH = """
import urllib.request, socket, sys
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=30).read().decode())
    except Exception as error:
        print("refused", error)
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1].split(":")[2].strip("/"))), 1)
    print("direct")
except OSError:
    print("no direct way")
"""


@pytest.mark.parametrize("use", ["agent", "verifier"])
async def test_from_inside_a_sandbox(backend, site, use):
    here = parse_endpoint(f"fixture.test:{site}")
    host = HostPolicy(network=NetworkMode.ALLOWLIST, network_hosts=frozenset({here}), private_hosts=frozenset({here}))
    access = NetworkAccess(mode=NetworkMode.ALLOWLIST, allow=[str(here)])
    contract = EnvironmentContract(network=Network(**{use: access}), limits=Limits(tool_timeout_seconds=60))
    contract = contract.for_verifier() if use == "verifier" else contract
    sandbox = BubblewrapBackend(host=host).create(contract)
    await sandbox.start()
    try:
        loop = asyncio.get_running_loop()
        real = loop.getaddrinfo
        loop.getaddrinfo = lambda name, *a, **k: real("127.0.0.1" if name == "fixture.test" else name, *a, **k)
        urls = [f"http://fixture.test:{site}/", "http://other.invalid/", f"http://10.0.0.1:{site}/"]
        done = await sandbox.exec(["/usr/bin/env", "python3", "-c", FETCH, *urls])
        assert done.stdout.splitlines() == [
            "hello", "refused HTTP Error 403: Forbidden", "refused HTTP Error 403: Forbidden", "no direct way",
        ], done  # fmt: skip
    finally:
        await sandbox.close()
    record = sandbox.record
    assert (record.network.num_allowed, record.network.num_refused) == (1, 2)
    begun = sorted(record.network.events, key=lambda event: event.started_seconds)  # they are noted as they end
    assert [event.host for event in begun] == ["fixture.test", "other.invalid", "10.0.0.1"]
    assert record.log.count("network: ") == 3
    assert str(here) in record.applied["network"]


async def test_the_other_sides_network_is_not_granted(backend):
    access = NetworkAccess(mode=NetworkMode.FULL)
    sandbox = BubblewrapBackend(host=HostPolicy(network=NetworkMode.FULL)).create(
        EnvironmentContract(network=Network(verifier=access))
    )
    await sandbox.start()
    try:
        code = "import os, socket\nprint('HTTP_PROXY' in os.environ, socket.socket().connect_ex(('127.0.0.1', 3128)))"
        done = await sandbox.exec(["/usr/bin/env", "python3", "-c", code])
        assert done.stdout == "False 111\n"
    finally:
        await sandbox.close()
    assert sandbox.record.applied["network"].startswith("none")
