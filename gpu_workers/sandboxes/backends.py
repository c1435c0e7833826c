"""Which sandbox backend a worker uses, chosen by its environment variables."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpu_workers.contracts.seams import SandboxBackend
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.sandboxes.container.backend import ContainerBackend
from gpu_workers.sandboxes.container.docker import DockerEngine
from gpu_workers.sandboxes.container.kubernetes import KubernetesEngine
from gpu_workers.sandboxes.container.launch import IMAGE
from gpu_workers.sandboxes.host import HostPolicy

_NAME = re.compile(r"[a-z0-9]([-a-z0-9_.]{0,61}[a-z0-9])?\Z")


class BackendName(StrEnum):
    """What may be in SANDBOX_BACKEND."""

    BUBBLEWRAP = "bubblewrap"
    DOCKER = "docker"
    PODMAN = "podman"
    KUBERNETES = "kubernetes"


DEFAULT_RUNTIME = {BackendName.DOCKER: "runsc", BackendName.PODMAN: "runsc", BackendName.KUBERNETES: "gvisor"}


@dataclass(frozen=True)
class BackendChoice:
    """`image` (by digest), `runtime` (runsc or runc; for pods the RuntimeClass) and `namespace` are for containers."""

    name: BackendName = BackendName.BUBBLEWRAP
    image: str = ""
    runtime: str = ""
    namespace: str = ""


def load_choice(env: Mapping[str, str]) -> BackendChoice:
    """Read SANDBOX_BACKEND, _IMAGE, _RUNTIME, _NAMESPACE. Raises ValueError starting with the variable's name."""
    text = env.get("SANDBOX_BACKEND") or BackendName.BUBBLEWRAP
    try:
        name = BackendName(text)
    except ValueError:
        raise ValueError(f"SANDBOX_BACKEND: {text!r} is not one of {', '.join(BackendName)}") from None
    if name is BackendName.BUBBLEWRAP:
        return BackendChoice()
    image = env.get("SANDBOX_IMAGE", "")
    if not IMAGE.match(image):
        raise ValueError(
            f"SANDBOX_IMAGE: {image!r} is not an image by digest; give one that holds python3, as "
            "python@sha256:<64 hexadecimal digits> (a tag may change under your feet)"
        )
    choice = BackendChoice(
        name,
        image,
        env.get("SANDBOX_RUNTIME") or DEFAULT_RUNTIME[name],
        env.get("SANDBOX_NAMESPACE") or "ratchet-sandboxes",
    )
    for variable, value in (("SANDBOX_RUNTIME", choice.runtime), ("SANDBOX_NAMESPACE", choice.namespace)):
        if not _NAME.match(value):
            raise ValueError(f"{variable}: {value!r} is not a name of lower-case letters, digits and dashes")
    return choice


def make_backend(choice: BackendChoice, host: HostPolicy) -> SandboxBackend:
    """The backend; whether this host can run it, its probe says."""
    if choice.name is BackendName.BUBBLEWRAP:
        return BubblewrapBackend(host=host)
    if choice.name is BackendName.KUBERNETES:
        return ContainerBackend(KubernetesEngine(choice.namespace, choice.runtime), choice.image, host)
    return ContainerBackend(DockerEngine(str(choice.name), choice.runtime), choice.image, host)
