"""Age of samples and the hard bound on it."""


class NegativeAge(ValueError):
    """A sample from a version that the batch's policy has not reached: the schedule is broken."""


def age(batch_index: int, min_version: int) -> int:
    """Versions between the policy that batch `batch_index` updates and the group's *oldest* token.

    Batch k takes the policy from version k to k + 1, so k is the trainer's version at consumption.
    """
    value = batch_index - min_version
    if value < 0:
        raise NegativeAge(f"batch {batch_index} cannot hold a sample of version {min_version}")
    return value


def is_stale(batch_index: int, min_version: int, max_staleness: int) -> bool:
    """Whether the group may no longer be trained on: age η trains, η + 1 does not."""
    return age(batch_index, min_version) > max_staleness
