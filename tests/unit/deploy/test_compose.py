"""Containers run the same processes with the same commands and variables as one machine does."""

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.env import ROOT, VARIABLES, Env, load_env
from ratchet.services.processes import PROCESSES, Plane, ProcessSpec, render

DEPLOY = ROOT / "deploy"
SERVERS = {"postgres", "valkey"}
STEPS = {"migrate", "model"}  # run once, then end
OF_LIBRARIES = {"OMP_NUM_THREADS", "OMP_WAIT_POLICY"}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return loaded


@pytest.fixture
def default_env(tmp_path: Path) -> Env:
    return load_env({"RATCHET_HOME": str(tmp_path)}, root=tmp_path)


def worker_variables() -> set[str]:
    """Names of the variables that workers read: literals in capitals of their settings, RATCHET_… anywhere."""
    names: set[str] = set()
    for path in (ROOT / "gpu_workers").rglob("*.py"):
        pattern = r"[A-Z][A-Z_]+" if path.name == "settings.py" else r"RATCHET_[A-Z_]+"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(pattern, node.value):
                names.add(node.value)
    return names


def test_every_process_is_there_and_no_other(services: dict[str, Any]) -> None:
    assert set(services) - SERVERS - STEPS == {spec.name for spec in PROCESSES}


@pytest.mark.parametrize("spec", PROCESSES, ids=lambda spec: spec.name)
def test_commands_are_those_of_the_table(spec: ProcessSpec, services: dict[str, Any], default_env: Env) -> None:
    model = "/var/lib/ratchet/models/smollm2-135m-instruct"
    expected = ["python", *render(spec, default_env, host="0.0.0.0", model=model)[1:]]
    assert shlex.split(services[spec.name]["command"]) == expected


def test_variables_exist(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if name in SERVERS:
            continue
        known = worker_variables() | OF_LIBRARIES
        if service["image"] == "ratchet-web":
            known |= VARIABLES
        assert set(service["environment"]) <= known, name


@pytest.mark.parametrize("spec", PROCESSES, ids=lambda spec: spec.name)
def test_only_the_control_plane_gets_database_and_secrets(spec: ProcessSpec, services: dict[str, Any]) -> None:
    service = services[spec.name]
    variables = service["environment"]
    if spec.plane is Plane.CONTROL:
        assert service["image"] == "ratchet-web"
        assert {"DATABASE_URL", "SECRET_KEY"} <= set(variables)
        return
    assert service["image"] == "ratchet-worker"
    assert not {"DATABASE_URL", "SECRET_KEY"} & set(variables)
    assert ("RATCHET_WORKER_SECRET" in variables) == ("RATCHET_WORKER_SECRET" in spec.secrets)
    assert not any("POSTGRES" in str(value) for value in variables.values())


@pytest.mark.parametrize("name", ["Dockerfile.web", "Dockerfile.worker"])
def test_images_copy_what_exists_and_run_as_a_user(name: str) -> None:
    lines = (DEPLOY / name).read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert copied
    for path in copied:
        assert (ROOT / path).exists(), path
    assert [line for line in lines if line.startswith("USER ")] == ["USER ratchet"]
    assert [path for path in copied if path.startswith("apps")] == (["apps"] if name == "Dockerfile.web" else [])
