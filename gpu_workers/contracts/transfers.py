"""How a policy version reaches the engines: the ways there are, and which of them `auto` means where."""

from dataclasses import dataclass
from enum import StrEnum


class Transfer(StrEnum):
    """The first replaces nothing and needs no pause; the others put new weights in place of all."""

    ADAPTER = "adapter"  # beside the others
    FULL = "full"  # from disk: the published folder
    DELTA = "delta"  # from disk: rebuilt on the engine's host from what changed
    BROADCAST = "broadcast"  # over one process group of sender and engines
    PEER = "peer"  # from disk: pulled by the engine's host out of the sender's memory
    AUTO = "auto"  # one of these, by the topology that the fleet worker is told


class TransferError(ValueError):
    """No transfer reaches the engines; says what to set."""


@dataclass(frozen=True)
class Topology:
    """Where the engines are, seen from the fleet worker that installs on them."""

    on_other_hosts: bool  # one engine or more
    has_agents: bool  # one on every engine's host
    shared_store: bool  # the object store is a folder that this host and the engines' mount
    collective: bool  # declared: engines and this host can form a process group


def resolve_transfer(wanted: Transfer, topology: Topology) -> Transfer:
    """What is done where `wanted` is asked for all weights. Raises TransferError.

    A collective network that was declared is used first; then what changed, where agents on other hosts rebuild it;
    then the folder itself, where engines can read it.
    """
    if wanted is not Transfer.AUTO:
        return wanted
    if topology.collective:
        return Transfer.BROADCAST
    if topology.on_other_hosts and topology.has_agents:
        return Transfer.DELTA
    if topology.shared_store or not topology.on_other_hosts:
        return Transfer.FULL
    raise TransferError(
        "engines are on other hosts, the object store is no folder that they could mount, and they have no agents: "
        "start one on each host (ROLLOUT_ENGINE_AGENTS), or set WEIGHTS_COLLECTIVE where a process group can be formed"
    )
