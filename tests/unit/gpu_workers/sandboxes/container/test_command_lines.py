"""What the engines are asked for, word by word."""

import json

import pytest

from gpu_workers.contracts.tasks import EnvironmentContract, Limits
from gpu_workers.sandboxes import seccomp
from gpu_workers.sandboxes.container import docker as docker_module
from gpu_workers.sandboxes.container import kubernetes as kubernetes_module
from gpu_workers.sandboxes.container.docker import DockerEngine
from gpu_workers.sandboxes.container.kubernetes import KubernetesEngine, network_policy, pod
from gpu_workers.sandboxes.container.launch import BOOT, Launch
from gpu_workers.sandboxes.container.profile import seccomp_profile

MIB = 2**20
IMAGE = "python@sha256:" + "a" * 64
LIMITS = Limits(memory_bytes=512 * MIB, disk_bytes=64 * MIB, num_processes=64)
CONTRACT = EnvironmentContract(environment={"SECRET": "s3cret"}, limits=LIMITS)
LABELS = {"ratchet.sandbox": "1", "ratchet.owner": "box:7:99", "ratchet.expires": "1700000000"}
LAUNCH = Launch("ratchet-x", IMAGE, CONTRACT, LABELS)
MEMORY = (512 + 64 + 64 + 16 + 64) * MIB  # processes, workspace, /tmp, /dev/shm, the server
INSIDE = ["--entrypoint", "python3", IMAGE, "-I", "-S", "-c", BOOT]


@pytest.fixture(autouse=True)
def clients(monkeypatch):
    """Programs that are nowhere: nothing here may ever speak to an engine or a cluster of this machine."""
    for module in (docker_module, kubernetes_module):
        monkeypatch.setattr(module, "find_client", lambda program: f"/nowhere/{program}")


def common(tmpfs_end=""):
    return [
        "--label", "ratchet.sandbox=1", "--label", "ratchet.owner=box:7:99", "--label", "ratchet.expires=1700000000",
        "--log-driver", "none", "--restart", "no", "--no-healthcheck", "--hostname", "sandbox",
        "--network", "none", "--ipc", "private", "--cgroupns", "private",
        "--user", "64717:64717", "--cap-drop", "ALL",
        "--security-opt", "no-new-privileges", "--security-opt", "seccomp=/p",
        "--read-only", "--shm-size", str(16 * MIB),
        "--tmpfs", f"/tmp:rw,nosuid,nodev,exec,mode=1777,size={64 * MIB}{tmpfs_end}",
        "--tmpfs", f"/workspace:rw,nosuid,nodev,exec,mode=1777,size={64 * MIB}{tmpfs_end}", "--workdir", "/workspace",
        "--memory", str(MEMORY), "--memory-swap", str(MEMORY), "--pids-limit", "68", "--cpus", "1",
    ]  # fmt: skip


def test_docker():
    head = ["/nowhere/docker", "run", "--interactive", "--name", "ratchet-x", "--pull", "never", "--runtime", "runsc"]
    assert DockerEngine().stream(LAUNCH, "/p") == [*head, *common(), *INSIDE]


def test_podman(monkeypatch):
    head = ["/nowhere/podman", "--runtime", "runc", "run", "--interactive", "--name", "ratchet-x", "--pull", "never"]
    tail = ["--http-proxy=false", "--read-only-tmpfs=false"]
    masks = ["--security-opt", "mask=/proc/sys:/proc/cmdline"]
    monkeypatch.setattr(docker_module, "masked_in_proc", lambda: (("/proc/sys",), ("/proc/cmdline",)))
    line = DockerEngine("podman", "runc").stream(LAUNCH, "/p")
    assert line == [*head, *common(",notmpcopyup"), *tail, *masks, *INSIDE]
    assert not any("mask=" in word for word in DockerEngine("podman", "runsc").stream(LAUNCH, "/p"))


@pytest.mark.parametrize(
    "word", ["--privileged", "--cap-add", "--device", "--volume", "-v", "--env", "--pid", "--init"]
)
def test_nothing_that_would_open_it(word):
    assert not any(part.split("=")[0] == word for part in DockerEngine().stream(LAUNCH, "/p"))


def test_memory_makes_room_for_a_snapshot_larger_than_the_processes_had():
    limits = Limits(memory_bytes=32 * MIB, disk_bytes=128 * MIB)
    launch = Launch("x", IMAGE, EnvironmentContract(limits=limits), LABELS)
    assert launch.memory_bytes == (128 + 128 + 64 + 16 + 64) * MIB


def test_attach_not_exec():
    assert KubernetesEngine("boxes").stream(LAUNCH, "") == [
        "/nowhere/kubectl", "--namespace", "boxes", "attach", "--stdin", "--quiet", "--container", "sandbox",
        "pod/ratchet-x",
    ]  # fmt: skip


def test_the_pod():
    manifest = pod(LAUNCH, "boxes", "gvisor")
    assert (manifest["apiVersion"], manifest["kind"]) == ("v1", "Pod")
    assert manifest["metadata"] == {
        "name": "ratchet-x",
        "namespace": "boxes",
        "labels": {"ratchet.sandbox": "1", "app.kubernetes.io/part-of": "ratchet"},
        "annotations": {"ratchet.owner": "box:7:99", "ratchet.expires": "1700000000"},
    }
    spec = manifest["spec"]
    (container,) = spec.pop("containers")
    user = {"runAsNonRoot": True, "runAsUser": 64717, "runAsGroup": 64717}
    seccomp_default = {"seccompProfile": {"type": "RuntimeDefault"}}
    sizes = {"workspace": 64 * MIB, "tmp": 64 * MIB, "shm": 16 * MIB}
    assert spec == {
        "runtimeClassName": "gvisor",
        "restartPolicy": "Never",
        "activeDeadlineSeconds": 60 + 120 + 20 + 120,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostNetwork": False,
        "hostPID": False,
        "hostIPC": False,
        "shareProcessNamespace": False,
        "hostname": "sandbox",
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "securityContext": {**user, **seccomp_default, "fsGroup": 64717},
        "volumes": [{"name": n, "emptyDir": {"medium": "Memory", "sizeLimit": str(s)}} for n, s in sizes.items()],
    }
    resources = {"cpu": "1", "memory": str(MEMORY), "ephemeral-storage": "64Mi"}
    assert container == {
        "name": "sandbox",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-I", "-S", "-c", BOOT],
        "workingDir": "/workspace",
        "stdin": True,
        "stdinOnce": True,
        "tty": False,
        "resources": {"requests": resources, "limits": resources},
        "securityContext": {
            "allowPrivilegeEscalation": False, "privileged": False, "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]}, **user, **seccomp_default,
        },
        "volumeMounts": [
            {"name": "workspace", "mountPath": "/workspace"}, {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }  # fmt: skip
    assert "s3cret" not in json.dumps(manifest), "variables go by the stream, not into the cluster's records"


def test_the_policy_denies_both_ways():
    assert network_policy("boxes") == {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "ratchet-sandboxes-deny-all", "namespace": "boxes"},
        "spec": {"podSelector": {"matchLabels": {"ratchet.sandbox": "1"}}, "policyTypes": ["Ingress", "Egress"]},
    }


def test_the_profile_denies_what_bubblewraps_filter_denies():
    profile = json.loads(seccomp_profile())
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW" and "architectures" not in profile
    rules = profile["syscalls"]
    assert all(rule["action"] == "SCMP_ACT_ERRNO" for rule in rules)
    flat = {name for rule in rules if not rule["args"] for name in rule["names"]}
    assert flat >= {*seccomp.DENIED_BY_NAME, *seccomp.DENIED_BY_NUMBER, "clone3"}
    clone = [rule["args"] for rule in rules if rule["names"] == ["clone"]]
    assert [{"index": 0, "value": 0x10000000, "valueTwo": 0x10000000, "op": "SCMP_CMP_MASKED_EQ"}] in clone
    families = {a["value"] for r in rules if r["names"] == ["socket"] for a in r["args"] if a["op"] == "SCMP_CMP_EQ"}
    assert families == set(range(46)) - {1, 2, 10}
