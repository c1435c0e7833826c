"""Why a container is no more, and whose doing it was; what an engine's complaint means and what to do. Pure."""

import re
from dataclasses import dataclass

from gpu_workers.sandboxes.container.inside.wire import FORGED

KILLED = 137  # 128 + SIGKILL
MAX_SHOWN = 400


@dataclass(frozen=True)
class State:
    """What an engine says of one container."""

    running: bool = False
    exit_code: int = 0
    oom_killed: bool = False
    reason: str = ""  # as the engine names it, e.g. Evicted
    message: str = ""


@dataclass(frozen=True)
class Ending:
    """`limit` as in ExecResult; `by_policy` only where nothing but the policy can have caused it."""

    reason: str
    by_policy: bool = False
    limit: str = ""


def ending(state: State | None) -> Ending:
    """What became of a sandbox that has stopped answering."""
    if state is None:
        return Ending("the container is gone: somebody has removed it")
    if state.oom_killed or state.reason == "OOMKilled":
        return Ending("the container passed its memory limit and was ended", by_policy=True, limit="memory")
    if state.reason == "Evicted" and "EmptyDir" in state.message:
        return Ending(f"evicted: {state.message}"[:MAX_SHOWN], by_policy=True, limit="disk")
    if state.exit_code == FORGED:
        return Ending("a process inside wrote to the worker's stream", by_policy=True)
    if state.running:
        return Ending("the stream broke while the container was running")
    cause = "was killed from outside" if state.exit_code == KILLED else f"ended with code {state.exit_code}"
    detail = " ".join(filter(None, (state.reason, state.message)))
    return Ending(f"the container {cause}{': ' + detail if detail else ''}"[:MAX_SHOWN])


@dataclass(frozen=True)
class Complaint:
    """`retryable`: whether another try may help without anybody doing something."""

    text: str
    retryable: bool = False


_ADVICE: tuple[tuple[str, str, bool], ...] = (
    (
        r"permission denied.*(docker\.sock|daemon socket)",
        "this user may not speak to the engine: add it to the group docker, or use rootless Podman",
        False,
    ),
    (
        r"cannot connect to the docker daemon|is the docker daemon running|connection refused|no such host|"
        r"was refused - did you specify|unable to connect to the server",
        "the engine does not answer: start it (`systemctl start docker`) or point DOCKER_HOST, CONTAINER_HOST or "
        "KUBECONFIG at one that runs",
        True,
    ),
    (
        r"no such image|image not known|unable to find image|not found: manifest|manifest unknown|"
        r"ErrImageNeverPull|ImagePullBackOff|ErrImagePull|InvalidImageName",
        "the image is not there: pull it on this host (`docker pull IMAGE@sha256:…`), or correct SANDBOX_IMAGE",
        False,
    ),
    (
        r"unknown or invalid runtime|invalid runtime name|runtime .{1,80} not found|RuntimeClass .{1,80} not found|"
        r"no runtime for|unknown runtime handler",
        "the engine has no such runtime: install gVisor (https://gvisor.dev/docs/user_guide/install) and register "
        "runsc, or set SANDBOX_RUNTIME=runc, which shares the host's kernel",
        False,
    ),
    (
        r"python3.{0,40}(not found|no such file)|no such file or directory.{0,40}python3",
        "the image has no python3 on its PATH, which the resident server needs: choose another SANDBOX_IMAGE",
        False,
    ),
    (
        r"forbidden|cannot create resource|unauthorized",
        "the cluster does not let this worker do it: see the Role in docs/guides/container-sandboxes.md",
        False,
    ),
    (r"cgroup", "the engine cannot set limits here: it needs cgroup v2, or a runtime that supports v1", False),
)


def explain(output: str) -> Complaint:
    """An engine's error with what to do about it."""
    shown = " ".join(output.split())
    shown = shown if len(shown) <= MAX_SHOWN else "…" + shown[-MAX_SHOWN:]
    for pattern, advice, retryable in _ADVICE:
        if re.search(pattern, output, re.IGNORECASE | re.DOTALL):
            return Complaint(f"{advice}. It said: {shown}", retryable)
    return Complaint(shown or "it ended without a word", True)
