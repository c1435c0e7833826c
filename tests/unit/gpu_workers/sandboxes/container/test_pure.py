"""Parts without an engine: endings, complaints, archives, frames, orphans."""

import asyncio
import os
import struct
import time

import pytest

from gpu_workers.contracts.tasks import EnvironmentContract, Limits
from gpu_workers.sandboxes.container.archive import ArchiveError, read_archive
from gpu_workers.sandboxes.container.channel import ForgedError, FrameReader, FrameWriter, _hash
from gpu_workers.sandboxes.container.endings import State, ending, explain
from gpu_workers.sandboxes.container.engine import unmet_facts
from gpu_workers.sandboxes.container.inside.wire import CALLS, ENTRY, FRAME, NETWORK
from gpu_workers.sandboxes.container.launch import LABEL_EXPIRES, LABEL_OWNER, is_orphan, new_launch, owner

KEY = b"k" * 32
IMAGE = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("state", "by_policy", "limit"),
    [
        (State(exit_code=137, oom_killed=True), True, "memory"),
        (State(exit_code=137, reason="OOMKilled"), True, "memory"),
        (State(reason="Evicted", message='Usage of EmptyDir volume "workspace" exceeds the limit'), True, "disk"),
        (State(reason="Evicted", message="The node was low on resource: memory"), False, ""),
        (State(exit_code=65), True, ""),
        (State(exit_code=137), False, ""),
        (State(exit_code=1), False, ""),
        (State(running=True), False, ""),
        (State(reason="DeadlineExceeded"), False, ""),
        (None, False, ""),
    ],
)
def test_whose_doing_an_ending_was(state, by_policy, limit):
    found = ending(state)
    assert (found.by_policy, found.limit) == (by_policy, limit)
    assert found.reason


@pytest.mark.parametrize(
    ("output", "advice", "retryable"),
    [
        ("Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?", "start it", True),
        ("permission denied while trying to connect to the Docker daemon socket", "group docker", False),
        ("The connection to the server 1.2.3.4:6443 was refused - did you specify the right", "KUBECONFIG", True),
        ("docker: Error response from daemon: No such image: python@sha256:ab", "docker pull", False),
        ("Error: python@sha256:ab: image not known", "docker pull", False),
        ("unknown or invalid runtime name: runsc", "install gVisor", False),
        ('pods "x" is forbidden: RuntimeClass "gvisor" not found', "install gVisor", False),
        ('exec: "python3": executable file not found in $PATH', "no python3", False),
        ('pods is forbidden: User "w" cannot create resource "pods"', "Role", False),
        ("", "ended without a word", True),
    ],
)
def test_what_to_do_about_a_complaint(output, advice, retryable):
    found = explain(output)
    assert advice in found.text and found.retryable is retryable


def entry(path, data, kind=0):
    return ENTRY.pack(kind, len(path), len(data)) + path + data


def test_an_archive_becomes_files():
    found = read_archive(entry(b"a/b", b"1") + entry(b"c", b"link", 1) + entry("é".encode(), b""), 10)
    assert found.files == {"a/b": b"1", "é": b""}
    assert found.refused == ["c: link"]
    assert (found.num_bytes, found.num_entries) == (1, 3)


@pytest.mark.parametrize("path", [b"/etc/x", b"../x", b"a/../x", b"a//x", b"./x", b"", b"a\nb", b"\xff"])
def test_a_path_that_is_none_is_refused(path):
    found = read_archive(entry(path, b"x"), 10)
    assert found.files == {} and len(found.refused) == 1


def test_an_archive_is_bounded_by_the_host_too():
    found = read_archive(entry(b"a", b"x" * 6) + entry(b"b", b"y" * 6) + entry(b"a", b"z"), 10)
    assert found.files == {"a": b"x" * 6} and len(found.refused) == 2
    assert read_archive(entry(b"a", b"1") + entry(b"b.txt", b"2"), 10, ["*.txt"]).files == {"b.txt": b"2"}
    many = b"".join(entry(str(n).encode(), b"") for n in range(1002))
    assert len(read_archive(many, 10).files) == 1000


@pytest.mark.parametrize("data", [b"x", entry(b"a", b"123")[:-1], struct.pack("<BII", 0, 2**31, 5) + b"a"])
def test_what_is_no_archive_is_an_error(data):
    with pytest.raises(ArchiveError):
        read_archive(data, 10)


def reader(data, max_bytes=100):
    stream = asyncio.StreamReader()
    stream.feed_data(data)
    stream.feed_eof()
    return FrameReader(stream, KEY, max_bytes)


def frame(data, number=0, direction=b"<", key=KEY, kind=CALLS):
    return FRAME.pack(kind, len(data), _hash(key, direction, number, kind, data)) + data


async def test_frames_of_the_server_are_read():
    source = reader(frame(b"ab") + frame(b"c", 1))
    assert [await source.readexactly(1) for _ in range(3)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "data",
    [
        frame(b"ab", key=b"x" * 32),  # forged
        frame(b"ab", number=1),  # out of order
        frame(b"ab", direction=b">"),  # the worker's own words sent back
        frame(b"ab")[:-1] + b"x",  # changed on the way
        frame(b"x" * 101),  # too long
        bytes([NETWORK]) + frame(b"ab")[1:],  # of another kind than it was written as
        frame(b"ab", kind=NETWORK),  # traffic where none is granted
    ],
)
async def test_what_the_server_has_not_written_is_seen(data):
    with pytest.raises(ForgedError):
        await reader(data).readexactly(1)


async def test_a_frame_cannot_be_replayed():
    source = reader(frame(b"a") + frame(b"a"))
    assert await source.readexactly(1) == b"a"
    with pytest.raises(ForgedError):
        await source.readexactly(1)


class Sink:
    def __init__(self):
        self.data = b""

    def write(self, data):
        self.data += data


def test_each_message_has_a_hash_of_its_own():
    sink = Sink()
    writer = FrameWriter(sink, KEY)
    writer.write(b"a")
    writer.write(b"a")
    assert sink.data == frame(b"a", 0, b">") + frame(b"a", 1, b">")


def test_orphans():
    now = time.time()
    alive = {LABEL_OWNER: owner(), LABEL_EXPIRES: str(int(now + 60))}
    host = owner().partition(":")[0]
    assert not is_orphan(alive, now)
    assert is_orphan(alive, now + 120), "its time is over"
    assert is_orphan({**alive, LABEL_OWNER: f"{host}:{os.getpid()}:1"}, now), "the number has gone to another process"
    assert is_orphan({**alive, LABEL_OWNER: f"{host}:999999999:5"}, now), "its worker has ended"
    assert not is_orphan({**alive, LABEL_OWNER: "elsewhere:1:1"}, now), "a worker of another host may live"
    assert is_orphan({}, now)


def test_names_and_labels_of_a_launch_are_its_own():
    contract = EnvironmentContract()
    first, second = new_launch(contract, IMAGE, {}), new_launch(contract, IMAGE, {})
    assert first.name != second.name and first.name.startswith("ratchet-")
    assert first.labels[LABEL_OWNER] == owner()
    assert time.time() + 300 < int(first.labels[LABEL_EXPIRES]) < time.time() + 400


GOOD = {"uid": "64717", "CapEff": "0000", "CapBnd": "0", "NoNewPrivs": "1", "writable": "", "closed": "",
        "filtered": "1", "workspace_bytes": "65536"}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"uid": "0"}, "uid 0"), ({"CapEff": "a80425fb"}, "capabilities"), ({"CapBnd": "1"}, "capabilities"),
        ({"NoNewPrivs": "0"}, "privileges"), ({"filtered": "0"}, "no filter"),
        ({"writable": "/etc"}, "/etc can be written"),
        ({"closed": "/tmp"}, "cannot be written"), ({"workspace_bytes": "99999999"}, "99999999 bytes"),
    ],
)  # fmt: skip
def test_a_container_that_lacks_something_is_told_what(change, problem):
    launch = new_launch(EnvironmentContract(limits=Limits(disk_bytes=65536)), IMAGE, {})
    assert unmet_facts(launch, GOOD) == []
    assert [problem in found for found in unmet_facts(launch, GOOD | change)] == [True]
