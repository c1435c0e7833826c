"""Container backends whose engine is the stand-in beside this file, found on PATH as the real one would be."""

import json
import sys
from pathlib import Path

import pytest

from gpu_workers.contracts.seams import WorkerError
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.sandboxes.command import find_bwrap
from gpu_workers.sandboxes.container.backend import ContainerBackend
from gpu_workers.sandboxes.container.docker import DockerEngine
from gpu_workers.sandboxes.container.kubernetes import KubernetesEngine

IMAGE = "python@sha256:" + "a" * 64


class StandIn:
    """The engine behind the stand-in: its containers, its faults, what it was asked."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def fault(self, name: str) -> None:
        (self.home / name).touch()

    def mend(self, name: str) -> None:
        (self.home / name).unlink()

    def containers(self) -> dict[str, dict]:
        found = [json.loads(path.read_text()) for path in (self.home / "containers").glob("*.json")]
        return {container["name"]: container for container in found}

    def change(self, name: str, **values) -> None:
        path = self.home / "containers" / f"{name}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.home / "calls.jsonl").read_text().splitlines()]


@pytest.fixture
async def standin(tmp_path, monkeypatch):
    try:
        await BubblewrapBackend().probe()
    except WorkerError as error:
        pytest.skip(f"the stand-in needs bubblewrap: {error}")
    home, programs = tmp_path / "home", tmp_path / "bin"
    (home / "containers").mkdir(parents=True)
    (home / "calls.jsonl").touch()
    programs.mkdir()
    script = Path(__file__).with_name("standin.py")
    for name in ("docker", "podman", "kubectl"):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {script} {name} "$@"\n')
        program.chmod(0o755)
    # Nothing of this machine's own on PATH but the system's tools: a test must never reach a real engine or cluster.
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("KUBECONFIG", "/dev/null")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setenv("STANDIN_HOME", str(home))
    monkeypatch.setenv("STANDIN_BWRAP", find_bwrap())
    engine = StandIn(home)
    yield engine
    assert not any(container.get("running") for container in engine.containers().values()), "a container is left"


def make_backend(name: str) -> ContainerBackend:
    engine = KubernetesEngine("boxes") if name == "kubernetes" else DockerEngine(name)
    return ContainerBackend(engine, IMAGE)


@pytest.fixture(params=["docker", "podman", "kubernetes"])
def backend(request, standin):
    return make_backend(request.param)


@pytest.fixture
def docker(standin):
    return make_backend("docker")
