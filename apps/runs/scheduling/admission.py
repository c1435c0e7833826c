"""How many new groups may be admitted: AReaL's rule (arXiv 2505.24298, section 5.1), in groups."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Demand:
    """What the rule looks at. `confirmed_version` is the lowest version the whole fleet holds; -1: none."""

    batch_size: int  # B, groups a step
    num_steps: int
    max_staleness: int  # η, versions
    confirmed_version: int
    num_batches: int  # sent or trained
    num_ready: int
    num_unfinished: int  # admitted, no result yet
    over_sampling: float = 0.0  # share of a batch admitted beyond the rule


def room(demand: Demand) -> int:
    """(η + v + 1)·B − (accepted + running), never beyond what the remaining steps need, plus the over-sampled ones.

    Accepted are the groups in batches and the ready ones; a group dropped later has left both counts.
    """
    if demand.confirmed_version < 0 or demand.num_batches >= demand.num_steps:
        return 0
    horizon = min(demand.max_staleness + demand.confirmed_version + 1, demand.num_steps)
    extra = math.ceil(demand.over_sampling * demand.batch_size)
    taken = demand.num_batches * demand.batch_size + demand.num_ready + demand.num_unfinished
    return max(0, horizon * demand.batch_size + extra - taken)


def num_admissible(batch_size: int, max_staleness: int, over_sampling: float) -> int:
    """Groups that the rule may ever let be open at once."""
    return (max_staleness + 1) * batch_size + math.ceil(over_sampling * batch_size)
