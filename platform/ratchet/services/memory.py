"""Memory of every process of a home: proportional set size, so that shared pages count once."""

from dataclasses import dataclass
from pathlib import Path

from ratchet.services.home import Home
from ratchet.services.marks import marked_processes, server_processes
from ratchet.services.sentinel import SERVERS


@dataclass(frozen=True, slots=True)
class MemoryUse:
    name: str
    num_processes: int
    pss_bytes: int


def memory_by_process(home: Home) -> list[MemoryUse]:
    """One entry per name of the process table, largest first."""
    totals: dict[str, tuple[int, int]] = {}
    servers = list(server_processes(home))
    others = [process for process in marked_processes(f"{home.root}:") if process.name not in SERVERS]
    for process in servers + others:
        count, size = totals.get(process.name, (0, 0))
        totals[process.name] = (count + 1, size + _pss_bytes(process.pid))
    uses = [MemoryUse(name, count, size) for name, (count, size) in totals.items()]
    return sorted(uses, key=lambda use: -use.pss_bytes)


def memory_table(home: Home) -> str:
    """The uses and their sum as text."""
    uses = memory_by_process(home)
    lines = [f"{use.name:12} {use.num_processes:3} processes {use.pss_bytes / 2**20:9.1f} MiB" for use in uses]
    total = sum(use.pss_bytes for use in uses)
    return "\n".join(
        [*lines, f"{'total':12} {sum(u.num_processes for u in uses):3} processes {total / 2**20:9.1f} MiB"]
    )


def _pss_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # ended meanwhile
        return 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
