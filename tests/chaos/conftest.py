"""A machine whose every process can be stopped at a named place and killed. `make test-chaos` runs these."""

import os
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_workers.models import tiny
from tests.chaos.barriers import Barriers
from tests.chaos.engine import DigestEngine
from tests.integration.loop import world
from tests.integration.services.machine import Machine, free_port

if not os.environ.get("CHAOS"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="package")
def barriers(tmp_path_factory: pytest.TempPathFactory) -> Barriers:
    return Barriers(tmp_path_factory.mktemp("barriers"))


@pytest.fixture(scope="package")
def machine(tmp_path_factory: pytest.TempPathFactory, barriers: Barriers) -> Iterator[Machine]:
    root: Path = tmp_path_factory.mktemp("chaos")
    tiny.prepare(root)
    engine = DigestEngine(root / "models" / tiny.NAME)
    ports = {name: str(free_port()) for name in ("RATCHET_PORT", "RATCHET_GATEWAY_PORT")}
    variables = {"ROLLOUT_ENGINE_URLS": engine.url, "RATCHET_ENGINE_MODEL": "tiny", "TORCH_THREADS": "1", **ports}
    machine = Machine(root, variables=variables, python=_python(root / "python", barriers))
    machine.up("--without", "gateway")
    yield machine
    machine.close()
    engine.close()


def _python(folder: Path, barriers: Barriers) -> str:
    """This interpreter with a line that arms the barriers in every process it starts."""
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    ours = [path for path in sys.path if path.endswith("site-packages")]
    hook = f"import os; os.environ['RATCHET_BARRIERS'] = {str(barriers.folder)!r}; import tests.chaos.barriers"
    (packages / "chaos.pth").write_text("\n".join([*ours, hook]) + "\n")
    return str(folder / "bin" / "python")


@pytest.fixture(scope="package")
def engineer(machine: Machine) -> Iterator[world.Person]:
    people = world.people(machine)
    world.prepare(people["engineer"], people["manager"])
    yield people["engineer"]
    for person in people.values():
        person.client.close()
