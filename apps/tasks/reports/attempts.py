"""What is known of how policies fare on a suite's tasks: asked of upper apps by a signal, since episodes are theirs."""

from dataclasses import dataclass, field
from typing import Any

from django.dispatch import Signal

from apps.tasks.models import Suite
from gpu_workers.contracts.replays import StoredEpisode

attempts_wanted = Signal()  # suite; a receiver answers with SuiteAttempts


@dataclass(frozen=True)
class TaskAttempts:
    """Scored episodes of one task. `baseline_*`: of the baseline's only. `stored`: some that can be judged again."""

    n: int = 0
    num_passed: int = 0
    baseline_n: int = 0
    baseline_passed: int = 0
    stored: tuple[StoredEpisode, ...] = ()


@dataclass(frozen=True)
class SuiteAttempts:
    """By id of the task. `baseline` names the policy whose pass rates stand for difficulty; empty: there is none."""

    baseline: str = ""
    tasks: dict[str, TaskAttempts] = field(default_factory=dict)

    def of(self, task_id: str) -> TaskAttempts:
        return self.tasks.get(task_id, _NONE)

    def plain(self) -> list[Any]:
        """What identifies the evidence, for a hash."""
        rows = [
            [key, a.n, a.num_passed, a.baseline_n, a.baseline_passed, [e.episode_id for e in a.stored]]
            for key, a in sorted(self.tasks.items())
        ]
        return [self.baseline, rows]


_NONE = TaskAttempts()


def collect_attempts(suite: Suite) -> SuiteAttempts:
    """The answer of whoever keeps episodes; an empty one where nobody does."""
    for _, answer in attempts_wanted.send(sender=Suite, suite=suite):
        if isinstance(answer, SuiteAttempts):
            return answer
    return SuiteAttempts()
