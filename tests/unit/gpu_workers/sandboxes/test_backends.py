"""The variables that choose a backend, and what they may not be."""

import pytest

from gpu_workers.sandboxes.backends import BackendChoice, BackendName, load_choice, make_backend
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.sandboxes.container.backend import ContainerBackend
from gpu_workers.sandboxes.host import HostPolicy

IMAGE = "python@sha256:" + "a" * 64


def test_bubblewrap_is_what_there_is_without_a_word():
    assert load_choice({}) == BackendChoice()
    assert isinstance(make_backend(BackendChoice(), HostPolicy()), BubblewrapBackend)


@pytest.mark.parametrize(("name", "runtime"), [("docker", "runsc"), ("podman", "runsc"), ("kubernetes", "gvisor")])
def test_a_container_backend_has_gvisor_unless_told_otherwise(name, runtime):
    choice = load_choice({"SANDBOX_BACKEND": name, "SANDBOX_IMAGE": IMAGE})
    assert choice == BackendChoice(BackendName(name), IMAGE, runtime, "ratchet-sandboxes")
    backend = make_backend(choice, HostPolicy())
    assert isinstance(backend, ContainerBackend)
    assert (backend.name, backend.engine.runtime, backend.image) == (name, runtime, IMAGE)


def test_runtime_and_namespace_are_taken():
    env = {"SANDBOX_BACKEND": "kubernetes", "SANDBOX_IMAGE": IMAGE, "SANDBOX_RUNTIME": "kata", "SANDBOX_NAMESPACE": "x"}
    choice = load_choice(env)
    assert (choice.runtime, choice.namespace) == ("kata", "x")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SANDBOX_BACKEND", "chroot"),
        ("SANDBOX_IMAGE", ""),
        ("SANDBOX_IMAGE", "python:3.12"),
        ("SANDBOX_IMAGE", "python@sha256:abc"),
        ("SANDBOX_IMAGE", "--privileged@sha256:" + "a" * 64),
        ("SANDBOX_RUNTIME", "--privileged"),
        ("SANDBOX_RUNTIME", "a b"),
        ("SANDBOX_NAMESPACE", "Upper"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(variable, value):
    with pytest.raises(ValueError, match=f"^{variable}: "):
        load_choice({"SANDBOX_BACKEND": "docker", "SANDBOX_IMAGE": IMAGE, variable: value})
