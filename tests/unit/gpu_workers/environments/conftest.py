"""A host program of the tests' own in a real sandbox: no framework is needed to test how hosts are run."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_workers.environments import isolation, process
from gpu_workers.environments.process import Hosts
from gpu_workers.sandboxes.command import find_bwrap

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def environments() -> Iterator[Path]:
    """A folder of environments that the sandbox's user can enter, with the interpreter of kind `counting`."""
    python = Path("/usr/bin/python3")
    if not python.exists():
        pytest.skip("no /usr/bin/python3 for the host")
    find_bwrap()
    folder = Path(tempfile.mkdtemp(prefix="ratchet-hosts-"))
    (folder / "counting" / "bin").mkdir(parents=True)
    (folder / "counting" / "bin" / "python").symlink_to(python)
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def hosts(environments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    programs = tmp_path / "hosts"
    programs.mkdir()
    shutil.copy(HERE / "counting_host.py", programs)
    shutil.copy(isolation.HOSTS / "protocol.py", programs)
    monkeypatch.setattr(isolation, "HOSTS", programs)
    monkeypatch.setitem(isolation.PROGRAMS, "counting", "counting_host.py")
    found = Hosts(environments, most=2)
    process.worker_hosts.cache_clear()
    yield found
    found.close()
    assert "counting_host" not in sys.modules
