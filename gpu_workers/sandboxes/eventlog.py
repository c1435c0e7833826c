"""The log of one sandbox: a line an event, bounded, with the limits that were hit."""

import time
from dataclasses import dataclass, field

from gpu_workers.contracts.groups import NetworkLog, SandboxRecord

MAX_LINES = 500
MAX_LINE = 300


@dataclass
class EventLog:
    """Collects what a SandboxRecord holds."""

    backend: str
    isolation: str = ""
    started: float = field(default_factory=time.monotonic)
    lines: list[str] = field(default_factory=list)
    limits_hit: list[str] = field(default_factory=list)
    refused_files: list[str] = field(default_factory=list)
    contract_hash: str = ""
    applied: dict[str, str] = field(default_factory=dict)
    network: NetworkLog = field(default_factory=NetworkLog)

    def add(self, text: str) -> None:
        """Append `text` behind the seconds since the sandbox was created."""
        if len(self.lines) == MAX_LINES:
            self.lines.append("… further events are not recorded")
        if len(self.lines) < MAX_LINES:
            line = " ".join(text.split())
            shown = line if len(line) <= MAX_LINE else line[:MAX_LINE] + "…"
            self.lines.append(f"{time.monotonic() - self.started:.3f} {shown}")

    def hit(self, limit: str) -> None:
        if limit and limit not in self.limits_hit:
            self.limits_hit.append(limit)

    def refuse(self, what: str) -> None:
        """A file that could not be taken: `path: reason`."""
        self.refused_files.append(what)
        self.add(f"file refused: {what}")

    def record(self) -> SandboxRecord:
        return SandboxRecord(
            backend=self.backend,
            isolation=self.isolation,
            limits_hit=list(self.limits_hit),
            log="\n".join(self.lines),
            refused_files=list(self.refused_files),
            contract_hash=self.contract_hash,
            applied=dict(self.applied),
            network=self.network,
        )
