"""What the sender offers, and what an engine's host is asked to pull."""

import msgspec

from gpu_workers.weights.delta.keeping import Wanted
from gpu_workers.weights.served import Serving


class OfferedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a model folder in the sender's memory."""

    name: str
    address: int
    num_bytes: int
    sha256: str


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A version's files at the sender; `session` is host:port of its transfer engine."""

    session: str
    files: list[OfferedFile]

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)


class PullRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The commit: this version consists of these files with these checksums, whatever bytes arrive.

    `serves` is what engines of this host say they have. A peer that sends nothing for `stall_seconds` is given up.
    """

    wanted: Wanted
    offer: Offer
    serves: list[Serving] = []
    stall_seconds: float = 15.0


class PullAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`num_bytes` were pulled; none where the version was here already."""

    path: str
    num_bytes: int
    seconds: float
    same_bytes: list[bool | None] = []
