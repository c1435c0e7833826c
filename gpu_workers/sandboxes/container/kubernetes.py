"""Kubernetes pods by kubectl: one pod per sandbox, denied every connection, its stream by attach."""

import asyncio
import json
import time
from typing import Any

from gpu_workers.contracts.environment import WORKSPACE
from gpu_workers.contracts.seams import Sandbox
from gpu_workers.sandboxes.command import SHM_BYTES
from gpu_workers.sandboxes.container.client import Done, find_client, run_client
from gpu_workers.sandboxes.container.endings import State
from gpu_workers.sandboxes.container.engine import REMOVE_TRIES, EngineError, reach_out
from gpu_workers.sandboxes.container.launch import (
    COMMAND,
    CPUS,
    LABEL_EXPIRES,
    LABEL_OWNER,
    LABEL_SANDBOX,
    USER_ID,
    Launch,
    is_orphan,
)

CONTAINER = "sandbox"
POLICY_NAME = "ratchet-sandboxes-deny-all"
POLL_SECONDS = 0.3
HOPELESS = frozenset(
    {
        "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError",
        "CreateContainerError", "RunContainerError", "CrashLoopBackOff",
    }
)  # fmt: skip


def network_policy(namespace: str) -> dict[str, Any]:
    """Denies every connection from and to sandboxes, as far as the cluster's network plugin enforces policies."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": POLICY_NAME, "namespace": namespace},
        "spec": {"podSelector": {"matchLabels": {LABEL_SANDBOX: "1"}}, "policyTypes": ["Ingress", "Egress"]},
    }


def pod(launch: Launch, namespace: str, runtime_class: str) -> dict[str, Any]:
    """The manifest of one sandbox. Kubernetes has no limit of processes per pod: the server inside keeps it."""
    limits = launch.limits
    volumes = {"workspace": limits.disk_bytes, "tmp": launch.tmp_bytes, "shm": SHM_BYTES}
    paths = {"workspace": WORKSPACE, "tmp": "/tmp", "shm": "/dev/shm"}  # noqa: S108
    resources = {"cpu": str(CPUS), "memory": str(launch.memory_bytes), "ephemeral-storage": "64Mi"}
    container = {
        "name": CONTAINER,
        "image": launch.image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(COMMAND),
        "workingDir": WORKSPACE,
        "stdin": True,
        "stdinOnce": True,
        "tty": False,
        "resources": {"requests": resources, "limits": resources},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in paths.items()],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": launch.name,
            "namespace": namespace,
            "labels": {LABEL_SANDBOX: "1", "app.kubernetes.io/part-of": "ratchet"},
            "annotations": {name: launch.labels[name] for name in (LABEL_OWNER, LABEL_EXPIRES)},
        },
        "spec": {
            "runtimeClassName": runtime_class,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": launch.lifetime_seconds,
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
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "fsGroup": USER_ID,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [
                {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": str(size)}}
                for name, size in volumes.items()
            ],
        },
    }


class KubernetesEngine:
    """One namespace of one cluster; which cluster, KUBECONFIG or the worker's service account says."""

    name = "kubernetes"
    can_bind = False  # a pod may run on another host
    profile = b""  # a node's own: a pod cannot bring one along

    def __init__(self, namespace: str, runtime: str = "gvisor") -> None:
        self.namespace = namespace
        self.runtime = runtime
        self._policy_applied = False

    async def prepare(self, launch: Launch) -> None:
        """Make the pod and wait until it runs."""
        if not self._policy_applied:
            await self._apply(["apply", "--filename", "-"], network_policy(self.namespace))
            self._policy_applied = True
        await self._apply(["create", "--filename", "-"], pod(launch, self.namespace, self.runtime))
        while True:
            found = await self._pod(launch.name)
            if found is None:
                raise EngineError(f"the pod {launch.name} has disappeared while it started")
            phase = found.get("status", {}).get("phase", "")
            if phase == "Running":
                return
            if problem := _start_problem(found):
                raise EngineError(problem)
            await asyncio.sleep(POLL_SECONDS)

    def stream(self, launch: Launch, profile_path: str) -> list[str]:
        """`attach`, not `exec`: the server must be process 1, which nothing inside can kill."""
        return [*self._line(), "attach", "--stdin", "--quiet", "--container", CONTAINER, f"pod/{launch.name}"]

    async def state(self, name: str) -> State | None:
        found = await self._pod(name)
        return None if found is None else pod_state(found)

    async def remove(self, name: str) -> None:
        for _ in range(REMOVE_TRIES):
            done = await self._client("delete", "pod", name, "--now", "--wait=true", "--ignore-not-found")
            if done.code == 0:
                return
        raise EngineError(done.stderr)

    async def sweep(self) -> list[str]:
        done = await self._client("get", "pods", "--selector", f"{LABEL_SANDBOX}=1", "--output", "json")
        if done.code != 0:
            raise EngineError(done.stderr)
        removed = []
        for found in json.loads(done.stdout)["items"]:
            metadata = found["metadata"]
            if is_orphan(metadata.get("annotations") or {}, time.time()):
                await self.remove(metadata["name"])
                removed.append(metadata["name"])
        return removed

    def isolation(self, launch: Launch) -> str:
        return (
            f"kubernetes, runtime class {self.runtime}, image {launch.image}: NetworkPolicy deny-all, read-only root, "
            f"no capabilities, no new privileges, uid {USER_ID}"
        )

    async def probe(self, sandbox: Sandbox) -> str:
        """A pod has an interface whatever its policy says: only a connection that fails shows that one applies."""
        if problem := await reach_out(sandbox):
            return f"{problem}; the cluster's network plugin must enforce NetworkPolicy {POLICY_NAME}"
        return ""

    def unmet(self, facts: dict[str, str]) -> list[str]:
        return []

    async def _pod(self, name: str) -> dict[str, Any] | None:
        done = await self._client("get", "pod", name, "--ignore-not-found", "--output", "json")
        if done.code != 0:
            raise EngineError(done.stderr)
        found: dict[str, Any] | None = json.loads(done.stdout) if done.stdout.strip() else None
        return found

    async def _apply(self, words: list[str], manifest: dict[str, Any]) -> None:
        done = await self._client(*words, stdin=json.dumps(manifest).encode())
        if done.code != 0:
            raise EngineError(done.stderr)

    def _line(self) -> list[str]:
        return [find_client("kubectl"), "--namespace", self.namespace]

    async def _client(self, *words: str, stdin: bytes = b"") -> Done:
        return await run_client([*self._line(), *words], stdin=stdin)


def pod_state(found: dict[str, Any]) -> State:
    status = found.get("status", {})
    containers: list[dict[str, Any]] = status.get("containerStatuses") or [{}]
    ended = containers[0].get("state", {}).get("terminated") or {}
    return State(
        running=status.get("phase") == "Running" and not ended,
        exit_code=int(ended.get("exitCode", 0)),
        oom_killed=ended.get("reason") == "OOMKilled",
        reason=str(status.get("reason") or ended.get("reason") or ""),
        message=str(status.get("message") or ended.get("message") or ""),
    )


def _start_problem(found: dict[str, Any]) -> str:
    """Why a pod that does not run never will; empty while there is hope."""
    status = found.get("status", {})
    if status.get("phase") in ("Failed", "Succeeded"):
        state = pod_state(found)
        return f"the pod ended before it was ready: {state.reason} {state.message}".strip()
    for container in status.get("containerStatuses", []):
        waiting = container.get("state", {}).get("waiting") or {}
        if waiting.get("reason") in HOPELESS:
            return f"{waiting['reason']}: {waiting.get('message', '')}"
    return ""
