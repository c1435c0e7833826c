"""One running machine for the tests of the whole loop."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.loop import world
from tests.integration.services.machine import Machine, free_port


@pytest.fixture(scope="package")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    root: Path = tmp_path_factory.mktemp("loop")
    names = ("RATCHET_PORT", "RATCHET_ENGINE_PORT", "RATCHET_FULL_ENGINE_PORT", "RATCHET_GATEWAY_PORT")
    ports = {name: str(free_port()) for name in names}
    machine = Machine(root, variables={"RATCHET_ENGINE_MODEL": "tiny", "RATCHET_FULL_ENGINE": "1", **ports})
    machine.up()
    yield machine
    machine.close()


@pytest.fixture(scope="package")
def people(machine: Machine) -> Iterator[dict[str, world.Person]]:
    people = world.people(machine)
    world.prepare(people["engineer"], people["manager"])
    yield people
    for person in people.values():
        person.client.close()
