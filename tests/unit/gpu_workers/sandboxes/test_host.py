"""A contract that asks for more than the host grants is refused before anything runs, naming field and setting."""

from pathlib import Path

import pytest

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.environment import (
    EnvironmentContract,
    Limits,
    Mount,
    MountRole,
    Network,
    NetworkAccess,
    NetworkMode,
    parse_endpoint,
)
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.sandboxes.bounds import check_contract
from gpu_workers.sandboxes.host import DataRoot, HostPolicy


@pytest.fixture
def roots(tmp_path: Path) -> dict[str, DataRoot]:
    for name in ("sets/squad", "tests/a"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "sets" / "link").symlink_to(tmp_path / "outside")
    return {
        "sets": DataRoot(tmp_path / "sets", frozenset({MountRole.INPUT, MountRole.WORKSPACE})),
        "tests": DataRoot(tmp_path / "tests", frozenset({MountRole.VERIFIER_SECRET})),
    }


def network(mode: NetworkMode, *allow: str, verifier: bool = False) -> Network:
    access = NetworkAccess(mode=mode, allow=list(allow))
    return Network(verifier=access) if verifier else Network(agent=access)


def mount(source: str, role: MountRole = MountRole.INPUT) -> EnvironmentContract:
    return EnvironmentContract(mounts=[Mount(path="/data", source=source, role=role)])


def test_everything_is_denied_by_default():
    check_contract(EnvironmentContract())
    for contract, field in (
        (EnvironmentContract(network=network(NetworkMode.ALLOWLIST, "a.org:1")), "network.agent"),
        (EnvironmentContract(network=network(NetworkMode.FULL, verifier=True)), "network.verifier"),
        (mount("sets/squad"), r"mounts\[0\].source"),
        (EnvironmentContract(image="python@sha256:" + "0" * 64), "image"),
    ):
        with pytest.raises(WorkerError, match=f"^contract.{field}: ") as refused:
            check_contract(contract)
        assert refused.value.boundary is Boundary.ENVIRONMENT and not refused.value.retryable


def test_hosts_beyond_the_workers_own_list_are_refused():
    host = HostPolicy(network=NetworkMode.ALLOWLIST, network_hosts=frozenset({parse_endpoint("a.org:443")}))
    check_contract(EnvironmentContract(network=network(NetworkMode.ALLOWLIST, "a.org:443")), host)
    with pytest.raises(WorkerError, match=r"network.agent.allow\[1\]: b.org:443 .*SANDBOX_NETWORK_HOSTS"):
        check_contract(EnvironmentContract(network=network(NetworkMode.ALLOWLIST, "a.org:443", "b.org:443")), host)
    with pytest.raises(WorkerError, match="full is more than this host allows, which is allowlist"):
        check_contract(EnvironmentContract(network=True), host)
    check_contract(EnvironmentContract(network=True), HostPolicy(network=NetworkMode.FULL))


@pytest.mark.parametrize(
    ("source", "role", "problem"),
    [
        ("sets", MountRole.INPUT, ""), ("sets/squad", MountRole.INPUT, ""), ("tests/a", MountRole.VERIFIER_SECRET, ""),
        ("other/x", MountRole.INPUT, "no data root 'other'; it has sets, tests"),
        ("tests/a", MountRole.INPUT, "is for the role verifier_secret, not for input"),
        ("sets/squad", MountRole.VERIFIER_SECRET, "not for verifier_secret"),
        ("sets/link", MountRole.INPUT, "leads out of its data root"),
        ("sets/nothing", MountRole.INPUT, "neither a folder nor a file"),
    ],
)  # fmt: skip
def test_mounts_come_from_the_workers_own_roots_by_role(roots, source, role, problem):
    host = HostPolicy(data_roots=roots)
    if not problem:
        check_contract(mount(source, role), host)
        return
    with pytest.raises(WorkerError, match=problem):
        check_contract(mount(source, role), host)


@pytest.mark.parametrize(
    ("limits", "setting"),
    [
        (Limits(memory_bytes=2**50), "SANDBOX_MAX_MEMORY_BYTES"), (Limits(disk_bytes=2**50), "SANDBOX_MAX_DISK_BYTES"),
        (Limits(num_processes=10**6), "SANDBOX_MAX_PROCESSES"), (Limits(cpu_seconds=10**6), "SANDBOX_MAX_SECONDS"),
        (Limits(verify_timeout_seconds=10**5), "SANDBOX_MAX_SECONDS"),
    ],
)  # fmt: skip
def test_sizes_beyond_the_host_are_refused(limits, setting):
    with pytest.raises(WorkerError, match=f"contract.limits.*{setting}"):
        check_contract(EnvironmentContract(limits=limits))
