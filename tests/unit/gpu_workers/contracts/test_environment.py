"""The contract: old bundles still read, every bad field named by its path, the hash and the table of grants."""

import hashlib

import msgspec
import pytest

from gpu_workers.contracts.contract_rules import ContractError, check_contract_fields, contract_problems
from gpu_workers.contracts.environment import (
    EnvironmentContract,
    Limits,
    Mount,
    MountRole,
    Network,
    NetworkAccess,
    NetworkMode,
    SandboxUse,
    parse_endpoint,
)
from gpu_workers.contracts.grants import describe
from gpu_workers.contracts.tasks import TaskBundle

OLD_BUNDLE = b"""{"key":"a","prompt":[{"role":"user","content":"?"}],"max_turns":1,
 "contract":{"network":false,"files":{"a.txt":"x"},"environment":{},"seed":7,"limits":{"cpu_seconds":3,
 "memory_bytes":536870912,"num_processes":64,"disk_bytes":67108864,"output_bytes":65536,"tool_timeout_seconds":10.0,
 "episode_timeout_seconds":120.0,"verify_timeout_seconds":20.0}},"verifier":{"kind":"exact"}}"""
SECRET = Mount(path="/tests", source="tests/a", role=MountRole.VERIFIER_SECRET)
INPUT = Mount(path="/data", source="datasets/squad")
COPY = Mount(path="/workspace/repo", source="repos/flask", role=MountRole.WORKSPACE, mode="rw")


def allow(*hosts: str) -> Network:
    return Network(agent=NetworkAccess(mode=NetworkMode.ALLOWLIST, allow=list(hosts)))


def test_a_bundle_stored_before_networks_had_two_sides_still_reads():
    contract = msgspec.json.decode(OLD_BUNDLE, type=TaskBundle).contract
    assert (contract.seed, contract.limits.cpu_seconds, contract.files) == (7, 3, {"a.txt": "x"})
    assert not contract.network and not contract.access(SandboxUse.AGENT) and not contract.access(SandboxUse.VERIFIER)
    again = msgspec.json.decode(msgspec.json.encode(contract), type=EnvironmentContract)
    assert again == contract and again.contract_hash == contract.contract_hash


def test_true_means_full_for_the_agent_alone():
    contract = msgspec.json.decode(b'{"network":true}', type=EnvironmentContract)
    assert contract.access(SandboxUse.AGENT).mode is NetworkMode.FULL
    assert contract.access(SandboxUse.VERIFIER).mode is NetworkMode.NONE
    assert contract.network


def test_nothing_is_granted_by_default():
    contract = EnvironmentContract()
    assert not contract.network and not contract.mounts and not contract.files and not contract.environment
    granted = [row.topic for row in describe(contract) if row.granted and not row.limit]
    assert granted == []


def test_the_hash_is_over_what_differs_from_the_defaults():
    empty = hashlib.sha256(b"[1,{}]").hexdigest()  # so that a field added later leaves it alone
    assert EnvironmentContract().contract_hash == empty
    assert EnvironmentContract(network=False, limits=Limits(), artifacts=["**"]).contract_hash == empty
    one = EnvironmentContract(limits=Limits(cpu_seconds=3), mounts=[INPUT])
    content = b'[1,{"limits":{"cpu_seconds":3},"mounts":[{"path":"/data","source":"datasets/squad"}]}]'
    assert one.contract_hash == hashlib.sha256(content).hexdigest()
    others = [
        EnvironmentContract(seed=1), EnvironmentContract(network=True), EnvironmentContract(network=allow("a.org:443")),
        EnvironmentContract(files={"a": "b"}), EnvironmentContract(files={"a": "c"}), EnvironmentContract(artifacts=[]),
        EnvironmentContract(licence="MIT"), EnvironmentContract(determinism_runs=2), EnvironmentContract(mounts=[COPY]),
        EnvironmentContract(mounts=[SECRET]), one,
    ]  # fmt: skip
    assert len({c.contract_hash for c in [*others, EnvironmentContract()]}) == len(others) + 1


def test_a_verifiers_secrets_are_not_the_agents():
    contract = EnvironmentContract(mounts=[SECRET, INPUT, COPY])
    assert contract.visible_mounts(SandboxUse.AGENT) == [INPUT, COPY]
    assert contract.visible_mounts(SandboxUse.VERIFIER) == [SECRET, INPUT]


BAD = {
    "version": EnvironmentContract(version=2),
    "source_format": EnvironmentContract(source_format="<script>"),
    "licence": EnvironmentContract(licence="x" * 200),
    "image": EnvironmentContract(image="python:3.12"),
    "network.agent.allow": EnvironmentContract(network=allow()),
    "network.agent.allow[1]": EnvironmentContract(network=allow("a.org:443", "a.org")),
    "network.verifier.allow": EnvironmentContract(network=Network(verifier=NetworkAccess(allow=["a.org:1"]))),
    "mounts[0].mode": EnvironmentContract(mounts=[Mount(path="/data", source="d/x", mode="rw")]),
    "mounts[1].mode": EnvironmentContract(
        mounts=[INPUT, Mount(path="/workspace/x", source="d/x", role=MountRole.WORKSPACE)]
    ),
    "mounts[0].path": EnvironmentContract(mounts=[Mount(path="/usr/lib", source="d/x")]),
    "mounts[1].path": EnvironmentContract(mounts=[INPUT, Mount(path="/data/x", source="d/x")]),
    "mounts[0].source": EnvironmentContract(mounts=[Mount(path="/data", source="d/../../etc")]),
    "environment": EnvironmentContract(environment={"A=B": "1"}),
    "limits.num_processes": EnvironmentContract(limits=Limits(num_processes=1)),
    "limits.memory_bytes": EnvironmentContract(limits=Limits(memory_bytes=-1)),
    "limits.disk_bytes": EnvironmentContract(limits=Limits(disk_bytes=0)),
    "limits.cpu_seconds": EnvironmentContract(limits=Limits(cpu_seconds=0)),
    "limits.output_bytes": EnvironmentContract(limits=Limits(output_bytes=2**40)),
    "limits.artifact_bytes": EnvironmentContract(limits=Limits(artifact_bytes=-1)),
    "limits.tool_timeout_seconds": EnvironmentContract(limits=Limits(tool_timeout_seconds=float("nan"))),
    "limits.setup_timeout_seconds": EnvironmentContract(limits=Limits(setup_timeout_seconds=float("inf"))),
    "limits.verify_timeout_seconds": EnvironmentContract(limits=Limits(verify_timeout_seconds=-1)),
    "files": EnvironmentContract(files={"a/../b": ""}),
    "artifacts[1]": EnvironmentContract(artifacts=["out/*.txt", "/etc/*"]),
    "determinism_runs": EnvironmentContract(determinism_runs=0),
}


@pytest.mark.parametrize("path", BAD)
def test_a_bad_field_is_named_by_its_path(path):
    problems = list(contract_problems(BAD[path]))
    assert [problem.path for problem in problems] == [path]
    with pytest.raises(ContractError, match="contract." + path.replace("[", r"\[").replace("]", r"\]") + ":"):
        check_contract_fields(BAD[path])


@pytest.mark.parametrize(
    "files",
    [
        {"/etc/passwd": ""}, {"../x": ""}, {"a//b": ""}, {"./a": ""}, {"": ""}, {"a/": ""}, {"/workspace/../x": ""},
        {"a\0b": ""}, {"a\nb": ""}, {"x" * 256: ""}, {"a": "1", "a/b": "2"}, {"a": "1", "/workspace/a": "2"},
        {"a": "\ud800"}, {"\ud800": ""}, {"é" * 128: ""},
    ],
)  # fmt: skip
def test_path_tricks_in_files_are_refused(files):
    assert [problem.path for problem in contract_problems(EnvironmentContract(files=files))] == ["files"]


@pytest.mark.parametrize("path", ["/", "/workspace", "/proc/x", "relative", "/data/../etc", "/data\n", "/tmp"])
def test_a_mount_may_not_take_the_sandboxs_own_places(path):
    contract = EnvironmentContract(mounts=[Mount(path=path, source="d/x")])
    assert [problem.path for problem in contract_problems(contract)] == ["mounts[0].path"]


def test_an_ordinary_contract_has_no_problems():
    contract = EnvironmentContract(
        source_format="harbor", licence="Apache-2.0", image="python@sha256:" + "0" * 64,
        network=allow("pypi.org:443", "203.0.113.7:80", "[2001:db8::1]:80"), mounts=[SECRET, INPUT, COPY],
        files={"a/b.txt": "x", "/workspace/c": "é"}, artifacts=["**", "out/*.json"], determinism_runs=3,
    )  # fmt: skip
    assert list(contract_problems(contract)) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PyPI.org.:443", "pypi.org:443"), ("1.2.3.4:80", "1.2.3.4:80"), ("[2001:DB8::1]:1", "[2001:db8::1]:1"),
        ("a-b.c:65535", "a-b.c:65535"),
    ],
)  # fmt: skip
def test_endpoints(text, expected):
    assert str(parse_endpoint(text)) == expected


@pytest.mark.parametrize(
    "text",
    ["", "a", "a:", "a:0", "a:65536", "a:٣", ":80", "a b:1", "*.org:1", "http://a:1", "2001:db8::1:1", "127.1:80",
     "[fe80::1%eth0]:1", "[a.org]:1", "-a.org:1", "a..org:1", "a@b:1", "0x7f000001:", "2130706433:80", "a\n:1"],
)  # fmt: skip
def test_endpoints_that_are_none(text):
    with pytest.raises(ValueError):
        parse_endpoint(text)


def test_the_table_shows_both_sides():
    contract = EnvironmentContract(network=allow("pypi.org:443"), mounts=[SECRET, INPUT], files={"a": ""}, artifacts=[])
    rows = {row.topic: row for row in describe(contract)}
    assert rows["Network of the agent"].granted and "pypi.org:443" in rows["Network of the agent"].text
    assert not rows["Network of the verifier"].granted
    assert rows["Data /data"].granted and not rows["Data /tests"].granted
    assert "never there while the agent runs" in rows["Data /tests"].text
    assert not rows["Files that leave"].granted
    assert not rows["Devices"].granted
    assert rows["Memory"].limit and "512 MiB" in rows["Memory"].text
