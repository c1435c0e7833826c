"""Data of the host inside a sandbox: by role, read-only, a verifier's secrets never while the agent runs."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from gpu_workers.contracts.enums import Boundary, VerifierKind
from gpu_workers.contracts.environment import EnvironmentContract, Limits, Mount, MountRole
from gpu_workers.contracts.seams import FinishedEpisode, WorkerError
from gpu_workers.contracts.tasks import TaskBundle, ToolSpec, VerifierSpec
from gpu_workers.rollout.environment import ToolEnvironment
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.sandboxes.decoys import Decoys
from gpu_workers.sandboxes.host import DataRoot, HostPolicy
from gpu_workers.verifiers.registry import get_verifier


@pytest.fixture
def data():
    """A folder that other users may enter: pytest's own may not be."""
    folder = Path(tempfile.mkdtemp(prefix="ratchet-mounts-"))
    for name, text in {"sets/a/x.txt": "input", "tests/a/answer.txt": "42", "repos/r/src/m.py": "M = 1\n"}.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def mounting(backend, data):
    roots = {
        "sets": DataRoot(data / "sets", frozenset({MountRole.INPUT})),
        "tests": DataRoot(data / "tests", frozenset({MountRole.VERIFIER_SECRET})),
        "repos": DataRoot(data / "repos", frozenset({MountRole.WORKSPACE})),
    }
    return BubblewrapBackend(host=HostPolicy(data_roots=roots))


CONTRACT = EnvironmentContract(
    mounts=[
        Mount(path="/data/a", source="sets/a"),
        Mount(path="/tests", source="tests/a", role=MountRole.VERIFIER_SECRET),
        Mount(path="/workspace/repo", source="repos/r", role=MountRole.WORKSPACE, mode="rw"),
    ],
    files={"repo/own.txt": "own"},
)


async def run(backend, contract, command):
    sandbox = backend.create(contract)
    await sandbox.start()
    try:
        return await sandbox.exec(["sh", "-c", command]), await sandbox.files(), sandbox.record
    finally:
        await sandbox.close()


async def test_an_agent_sees_its_input_and_its_copy_and_nothing_of_the_verifier(mounting, data):
    command = (
        "cat /data/a/x.txt repo/src/m.py repo/own.txt; echo changed > repo/src/m.py;"
        " echo x > /data/a/x.txt; echo x > /data/a/new; rm -f /data/a/x.txt; cat /tests/answer.txt; ls /tests"
    )
    done, files, record = await run(mounting, CONTRACT, command)
    assert done.stdout == "inputM = 1\nown"
    assert done.stderr.count("Read-only file system") == 3, done.stderr
    assert "42" not in done.stdout and "/tests" in done.stderr
    assert files == {"repo/src/m.py": b"changed\n", "repo/own.txt": b"own"}
    assert (data / "repos/r/src/m.py").read_text() == "M = 1\n"
    assert [p.name for p in (data / "sets/a").iterdir()] == ["x.txt"]
    assert record.applied["mounts"] == "/data/a from sets/a (read-only), /workspace/repo from repos/r (copied)"
    assert record.contract_hash == CONTRACT.contract_hash


async def test_a_verifier_sees_its_secrets_read_only_and_no_copy(mounting):
    done, files, record = await run(mounting, CONTRACT.for_verifier(), "cat /tests/answer.txt; echo > /tests/x; ls")
    assert done.stdout == "42" and "Read-only" in done.stderr
    assert files == {} and "/tests from tests/a" in record.applied["mounts"]


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's sandbox reads what the user reads")
async def test_a_source_that_the_sandboxs_user_cannot_read_is_refused(mounting, data):
    (data / "sets").chmod(0o700)
    with pytest.raises(WorkerError, match=r"sets/a: .* is closed to the user") as refused:
        await run(mounting, CONTRACT, "true")
    assert refused.value.boundary is Boundary.ENVIRONMENT


async def test_a_copy_that_is_not_all_plain_files_or_too_large_is_refused(mounting, data):
    (data / "repos/r/link").symlink_to("/etc/passwd")
    with pytest.raises(WorkerError, match=r"contract.mounts\[1\]: its source cannot be copied: link: not a regular"):
        await run(mounting, CONTRACT, "true")
    (data / "repos/r/link").unlink()
    (data / "repos/r/big").write_bytes(b"x" * 200_000)
    small = EnvironmentContract(mounts=CONTRACT.mounts, limits=Limits(disk_bytes=100_000))
    with pytest.raises(WorkerError, match="exceed what is left"):
        await run(mounting, small, "true")


async def test_a_large_copy_arrives_whole(mounting, data):
    for number in range(12):
        (data / f"repos/r/{number}.bin").write_bytes(bytes([number]) * 2**20)
    done, files, _ = await run(mounting, EnvironmentContract(mounts=CONTRACT.mounts), "cd repo; cat *.bin | wc -c")
    assert int(done.stdout) == 12 * 2**20
    assert files["repo/11.bin"] == b"\x0b" * 2**20


async def test_a_verifier_program_reads_the_tasks_secret_while_the_episode_could_not(mounting):
    program = "def verify(episode):\n    with open('/tests/answer.txt') as file:\n"
    program += "        return {'score': float(file.read() == episode['answer'])}"
    spec = VerifierSpec(kind=VerifierKind.PROGRAM, program=program)
    task = TaskBundle(key="t", prompt=[], contract=CONTRACT, verifier=spec)
    verifier = get_verifier(spec, mounting)
    assert (await verifier.verify(task, FinishedEpisode(answer="42", messages=[]))).verdict == "pass"
    assert (await verifier.verify(task, FinishedEpisode(answer="41", messages=[]))).verdict == "fail"


async def test_decoys_are_seen_whatever_the_allow_list_and_do_not_leave_with_the_files(mounting):
    contract = EnvironmentContract(artifacts=["out.txt"])
    tools = [ToolSpec(name="shell")]
    for command, changed in (("true", []), ("echo > .verifier/expected.json", [".verifier/expected.json"])):
        environment = ToolEnvironment(mounting, contract, tools, decoys=Decoys())
        await environment.reset()
        try:
            await environment.step("shell", {"command": f"{command}; echo x > out.txt; echo y > other.txt"})
            assert await environment.state() == {"out.txt": b"x\n"}
            assert environment.record.changed_decoys == changed
        finally:
            await environment.close()
