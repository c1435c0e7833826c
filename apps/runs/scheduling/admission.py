"""How many new groups may be admitted: AReaL's rule (arXiv 2505.24298, section 5.1), in groups."""

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


def room(demand: Demand) -> int:
    """(η + v + 1)·B − (accepted + running), never beyond what the remaining steps need.

    Accepted are the groups in batches and the ready ones; a group dropped later has left both counts.
    """
    if demand.confirmed_version < 0:
        return 0
    horizon = min(demand.max_staleness + demand.confirmed_version + 1, demand.num_steps)
    taken = demand.num_batches * demand.batch_size + demand.num_ready + demand.num_unfinished
    return max(0, horizon * demand.batch_size - taken)


def in_flight_limit(batch_size: int) -> int:
    """Groups of one run that may be with the workers at once.

    Deadlines run from dispatch, so a long broker queue would eat them; two batches keep every worker busy.
    """
    return max(8, 2 * batch_size)
