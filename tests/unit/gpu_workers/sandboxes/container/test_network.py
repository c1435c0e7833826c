"""The way out of a container: the worker's proxy, by frames of the server's own stream, under every engine."""

import asyncio
import hashlib
import http.server
from pathlib import Path

import pytest

from gpu_workers.contracts.environment import EnvironmentContract, Limits, Network, NetworkAccess, NetworkMode
from gpu_workers.contracts.environment import parse_endpoint as endpoint
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.sandboxes.container.backend import ContainerBackend
from gpu_workers.sandboxes.host import HostPolicy
from tests.unit.gpu_workers.sandboxes.container.conftest import IMAGE

LIMITS = Limits(tool_timeout_seconds=40)
FETCH = """
import os, socket, sys, urllib.request
site = os.environ["SITE"]
for url in ("http://fixture.test:" + site + "/", "http://other.invalid/", "http://10.0.0.1:" + site + "/"):
    try:
        print(urllib.request.urlopen(url, timeout=30).read().decode())
    except Exception as error:
        print("refused", error)
try:
    socket.create_connection(("127.0.0.1", int(site)), 1)
    print("direct")
except OSError:
    print("no direct way")
"""


@pytest.fixture
def resolve(monkeypatch):
    """Lets `fixture.test` be this host, in whichever loop asks."""

    def use():
        loop = asyncio.get_running_loop()
        real = loop.getaddrinfo
        monkeypatch.setattr(
            loop, "getaddrinfo", lambda name, *a, **k: real("127.0.0.1" if name == "fixture.test" else name, *a, **k)
        )

    return use


def granting(backend: ContainerBackend, port: int, **values) -> tuple[ContainerBackend, EnvironmentContract]:
    here = endpoint(f"fixture.test:{port}")
    host = HostPolicy(network=NetworkMode.ALLOWLIST, network_hosts=frozenset({here}), private_hosts=frozenset({here}))
    access = NetworkAccess(mode=NetworkMode.ALLOWLIST, allow=[str(here)])
    contract = EnvironmentContract(
        network=Network(agent=access), limits=LIMITS, environment={"SITE": str(port)}, **values
    )
    return ContainerBackend(backend.engine, IMAGE, host), contract


async def test_by_allow_list_and_nothing_else(backend, site, resolve):
    resolve()
    granted, contract = granting(backend, site)
    sandbox = granted.create(contract)
    await sandbox.start()
    try:
        for call in (sandbox.run_python(FETCH), sandbox.exec(["python3", "-c", FETCH])):
            assert (await call).stdout.splitlines() == [
                "hello", "refused HTTP Error 403: Forbidden", "refused HTTP Error 403: Forbidden", "no direct way",
            ]  # fmt: skip
        assert await sandbox.files() == {}
    finally:
        await sandbox.close()
    record = sandbox.record
    assert (record.network.num_allowed, record.network.num_refused) == (2, 4)
    assert record.log.count("network: ") == 6
    assert "the worker's proxy: fixture.test" in record.applied["network"]
    assert record.applied["network"].endswith("interfaces seen inside: lo")


async def test_a_host_that_grants_none_refuses(backend):
    contract = EnvironmentContract(network=True)
    with pytest.raises(WorkerError, match=r"contract\.network\.agent: full is more than this host allows"):
        backend.create(contract)


async def test_without_a_grant_there_is_no_door(docker):
    sandbox = docker.create(EnvironmentContract(network=Network(verifier=NetworkAccess())))
    await sandbox.start()
    try:
        code = "import os, socket\nprint('HTTP_PROXY' in os.environ, socket.socket().connect_ex(('127.0.0.1', 3128)))"
        assert (await sandbox.run_python(code)).stdout == "False 111\n"
    finally:
        await sandbox.close()


class Bulk(http.server.BaseHTTPRequestHandler):
    """Gives as many bytes as the path says; says of what it is given which bytes they were."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._answer(b"\xa5" * int(self.path.strip("/")))

    def do_POST(self):
        left, state = int(self.headers["Content-Length"]), hashlib.sha256()
        while left:
            data = self.rfile.read(min(left, 65536))
            state.update(data)
            left -= len(data)
        self._answer(state.hexdigest().encode())

    def _answer(self, data):
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def bulk(serve):
    return serve(Bulk)


MUCH = """
import hashlib, os, threading, time, urllib.request
site, size, results = "http://fixture.test:" + os.environ["SITE"], 3_000_000, []
def down(slow):
    with urllib.request.urlopen(site + "/" + str(size), timeout=30) as answer:
        read = 0
        while part := answer.read(100_000):
            assert part == b"\\xa5" * len(part)
            read += len(part)
            time.sleep(0.01 if slow else 0)
    results.append(read == size)
def up(number):
    data = bytes([number]) * size
    answer = urllib.request.urlopen(site, data=data, timeout=30).read().decode()
    results.append(answer == hashlib.sha256(data).hexdigest())
threads = [threading.Thread(target=down, args=(n % 2,)) for n in range(4)]
threads += [threading.Thread(target=up, args=(n,)) for n in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(results == [True] * 8)
"""


async def test_much_at_once_in_both_directions_arrives_whole(docker, bulk, resolve):
    resolve()
    granted, contract = granting(docker, bulk)
    sandbox = granted.create(contract)
    await sandbox.start()
    try:
        done = await sandbox.run_python(MUCH)
        assert done.stdout == "True\n", done
    finally:
        await sandbox.close()
    log = sandbox.record.network
    assert log.num_allowed == 8 and log.sent_bytes >= 12_000_000 and log.received_bytes > 12_000_000


HOLD = """
import os, socket, threading, time
os.system("echo out")
host = ("127.0.0.1", 3128)
held = [socket.create_connection(host) for _ in range({count})]
for one in held[:{open}]:
    one.sendall(b"CONNECT fixture.test:" + os.environ["SITE"].encode() + b" HTTP/1.1\\r\\n\\r\\n")
    print(one.recv(12)[9:].decode(), end=" ", flush=True)
"""


async def test_what_a_call_has_opened_ends_with_it(docker, site, resolve):
    resolve()
    granted, contract = granting(docker, site)
    sandbox = granted.create(contract)
    await sandbox.start()
    try:
        descriptors, tasks = len(list(Path("/proc/self/fd").iterdir())), len(asyncio.all_tasks())
        program = HOLD.format(count=6, open=4)
        daemon = f"import os, time\nif os.fork() == 0:\n os.setsid()\n exec({program!r})\n time.sleep(60)\n"
        done = await sandbox.run_python(daemon + "time.sleep(1)")
        assert done.stdout == "out\n200 200 200 200 " and done.exit_code == 0
        for _ in range(3):
            done = await sandbox.run_python(program + "time.sleep(60)", timeout_seconds=1)
            assert done.timed_out and done.stdout == "out\n200 200 200 200 "
        done = await sandbox.run_python(FETCH)
        assert done.stdout.startswith("hello\n")
        assert len(asyncio.all_tasks()) <= tasks
        assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    finally:
        await sandbox.close()


async def test_more_connections_than_there_may_be_starve_nobody(docker, site, resolve):
    resolve()
    granted, contract = granting(docker, site)
    sandbox = granted.create(contract)
    await sandbox.start()
    try:
        flood = HOLD.format(count=200, open=0) + "time.sleep(0.5)\nprint('flooded')"
        assert (await sandbox.run_python(flood)).stdout.endswith("flooded\n")
        assert (await sandbox.run_python(FETCH)).stdout.startswith("hello\n")
    finally:
        await sandbox.close()
    assert any("connections at once" in event.reason for event in sandbox.record.network.events)


async def test_a_call_holds_no_descriptor_of_the_server(docker, site):
    """Code of a call runs in a process forked from the server: neither its stream nor the door is there."""
    granted, contract = granting(docker, site)
    sandbox = granted.create(contract)
    await sandbox.start()
    try:
        code = "import os\nfor n in os.listdir('/proc/self/fd'):\n try: print(n, os.readlink('/proc/self/fd/' + n))\n"
        done = await sandbox.run_python(code + " except OSError: pass")
        assert done.stdout and "socket" not in done.stdout, done
    finally:
        await sandbox.close()


async def test_links_are_looked_for_and_never_silently_missing(docker):
    sandbox = docker.create(EnvironmentContract(links={"/app": "project"}))
    with pytest.raises(WorkerError, match=r"contract.links: .* has no /app that leads below /workspace"):
        await sandbox.start()
    await sandbox.close()
