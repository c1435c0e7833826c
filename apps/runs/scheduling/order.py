"""Order in which a run meets its tasks: a seeded shuffle per epoch, stale tasks again before new ones."""

import random
from functools import lru_cache


def task_index(position: int, num_tasks: int, seed: int) -> int:
    """Index of the task at `position` (0, 1, 2 …); every epoch is a permutation of its own."""
    if num_tasks < 1:
        raise ValueError("a run needs at least one task")
    epoch, offset = divmod(position, num_tasks)
    return _permutation(num_tasks, seed, epoch)[offset]


@lru_cache(maxsize=64)
def _permutation(num_tasks: int, seed: int, epoch: int) -> tuple[int, ...]:
    indices = list(range(num_tasks))
    random.Random(f"{seed}/{epoch}").shuffle(indices)
    return tuple(indices)


def group_seed(run_seed: int, number: int) -> int:
    """Sampling seed of the group admitted as `number`; 31 bits, what every engine accepts."""
    return random.Random(f"{run_seed}/group/{number}").getrandbits(31)
