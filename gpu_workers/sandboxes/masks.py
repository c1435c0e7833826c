"""What /usr and /proc would show of the host beyond what programs need, and the arguments that put nothing over it."""

import stat
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

# All that is left of /proc beside the processes: programs size themselves by the first line, and the second says no
# more than which kernel this is. Whatever else there is, its command line, configuration and symbols, its settings, its
# load, its disks, is masked without being named here. Every mask of a file costs a start 0.15 ms.
KEPT_IN_PROC = frozenset({"cpuinfo", "filesystems", "meminfo", "stat", "uptime", "version"}) | frozenset(
    {"cgroups", "consoles", "crypto", "devices", "dma", "execdomains", "iomem", "ioports", "keys", "misc", "mtrr"}
)


@lru_cache(maxsize=1)
def masked_folders() -> tuple[str, ...]:
    """Folders below /usr that hold installed packages or this project: a wheel there may carry a suite's answers."""
    found = {Path(p) for p in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path)}
    found = {p for p in found if p.name in ("site-packages", "dist-packages")}
    for pattern in ("lib/python3*", "local/lib/python3*"):
        for folder in Path("/usr").glob(pattern):
            found |= {folder / "site-packages", folder / "dist-packages"}
    found |= {Path(sys.prefix), Path(__file__).resolve().parents[2], Path("/usr/src")}
    return tuple(sorted({str(p) for p in _below_usr(found)}))


def _below_usr(folders: set[Path]) -> Iterator[Path]:
    for folder in folders:
        real = folder.resolve()
        if real.is_dir() and real.is_relative_to("/usr") and real not in (Path("/usr"), Path("/usr/local")):
            yield real


@lru_cache(maxsize=1)
def masked_in_proc() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Folders, and files that everybody may read. Links are left: they lead to the process's own folder."""
    folders, files = [], []
    for entry in sorted(Path("/proc").iterdir()):
        if entry.name.isdigit() or entry.name in KEPT_IN_PROC or entry.is_symlink():
            continue
        mode = entry.stat().st_mode
        if stat.S_ISDIR(mode):
            folders.append(str(entry))
        elif mode & stat.S_IROTH:
            files.append(str(entry))
    return tuple(folders), tuple(files)


def mask_usr() -> list[str]:
    """Arguments for bubblewrap, once /usr is there."""
    return [word for folder in masked_folders() for word in _empty(folder)]


def mask_proc() -> list[str]:
    """Arguments for bubblewrap, once /proc is there. A device on such a mount cannot even be opened."""
    folders, files = masked_in_proc()
    line = [word for folder in folders for word in _empty(folder)]
    for file in files:
        line += ["--ro-bind", "/dev/null", file]
    return line


def _empty(folder: str) -> tuple[str, ...]:
    return "--tmpfs", folder, "--remount-ro", folder
