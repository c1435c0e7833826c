"""Named places in the product's processes at which a test holds one of them, to kill it there.

Loaded into every process of the machine under test by its interpreter; the product itself knows nothing of it.
"""

import importlib.util
import os
import sys
import time
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


class Barriers:
    """The test's side: arm a place, wait until a process stands there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def arm(self, name: str) -> None:
        """The next process that comes to this place stops there."""
        (self.folder / f"{name}.armed").touch()

    def wait(self, name: str, seconds: float = 120) -> int:
        """The pid of the process that stands there."""
        reached = self.folder / f"{name}.reached"
        deadline = time.monotonic() + seconds
        while not (reached.exists() and reached.read_text()):
            assert time.monotonic() < deadline, f"nobody came to {name} within {seconds} s"
            time.sleep(0.02)
        pid = int(reached.read_text())
        reached.unlink()
        return pid


def stand(name: str) -> None:
    """A process's side: stop for good if the place is armed; one process only."""
    folder = Path(os.environ["RATCHET_BARRIERS"])
    try:
        (folder / f"{name}.armed").rename(folder / f"{name}.taken")
    except FileNotFoundError:
        return
    (folder / f"{name}.taken").unlink()
    note = folder / f"{name}.note"
    note.write_text(str(os.getpid()))
    note.rename(folder / f"{name}.reached")
    time.sleep(3600)


def _before(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **options: Any) -> Any:
        stand(name)
        return function(*args, **options)

    return wrapped


def _after(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        stand(name)
        return result

    return wrapped


def _hold_step(module: ModuleType) -> None:
    """Gradients are there, the optimiser has not moved."""
    module.Optimiser.step = _before("step", module.Optimiser.step)


def _hold_checkpoint(module: ModuleType) -> None:
    """The state is on the disk, its manifest is not."""
    module.seal = _before("checkpoint", module.seal)


def _hold_publish(module: ModuleType) -> None:
    """All of a version is in the store but its manifest."""
    put = module.ObjectStore.put_file

    def wrapped(store: Any, key: str, file: Path) -> None:
        if key.startswith("runs/") and key.count("/") == 4 and key.endswith("/manifest.json"):
            stand("publish")
        put(store, key, file)

    module.ObjectStore.put_file = wrapped


def _hold_report(module: ModuleType) -> None:
    """The version is durable, nobody knows."""
    send = module.CeleryReporter.send

    def wrapped(reporter: Any, report: Any) -> None:
        if report.kind == "step":
            stand("report")
        send(reporter, report)

    module.CeleryReporter.send = wrapped


def _hold_install(module: ModuleType) -> None:
    """The engines hold the version, the answer is not sent."""
    install = module.install_on_fleet

    async def wrapped(*args: Any, **options: Any) -> Any:
        answer = await install(*args, **options)
        stand("install")
        return answer

    module.install_on_fleet = wrapped


def _hold_ingest(module: ModuleType) -> None:
    """A report is applied, its transaction is open."""
    apply = module._apply

    def wrapped(report: Any) -> str:
        refused = str(apply(report))
        if report.kind == "step":
            stand("ingest")
        return refused

    module._apply = wrapped


def _hold_group(module: ModuleType) -> None:
    """A group's files are stored, its report is not sent."""
    module._store = _after("group", module._store)


_HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "gpu_workers.trainer.optimisation": _hold_step,
    "gpu_workers.trainer.checkpoints": _hold_checkpoint,
    "gpu_workers.contracts.store": _hold_publish,
    "gpu_workers.reporting": _hold_report,
    "gpu_workers.weights.fleet": _hold_install,
    "apps.runs.services.reports": _hold_ingest,
    "gpu_workers.rollout.group": _hold_group,
}
PLACES = ("step", "checkpoint", "publish", "report", "install", "ingest", "group")


class _Finder(MetaPathFinder):
    """Calls the hook of a module right after it was executed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        hook = _HOOKS.pop(name, None)
        if hook is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            hook(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "RATCHET_BARRIERS" in os.environ:
    sys.meta_path.insert(0, _Finder())
