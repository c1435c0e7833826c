"""Stragglers of a run: decisions about them, recorded once with their propensity, and their cancellation."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from django.utils import timezone

from apps.runs.events import WARNING, record_event
from apps.runs.models import Group, Outcome, Run
from apps.runs.scheduling import stragglers
from apps.runs.scheduling.stragglers import Arm, RunningGroup
from apps.runs.services.groups import give_up
from gpu_workers.contracts.runspec import RunSpec


class Stragglers:
    """`rows`: running groups of a locked run, locked."""

    def __init__(self, run: Run, spec: RunSpec, rows: Mapping[UUID, Group]) -> None:
        self._run, self._spec, self._rows = run, spec, rows

    def running(self) -> list[RunningGroup]:
        """What the plan needs of them."""
        return [
            RunningGroup(g.id, g.number, g.policy_version, Arm(g.straggler) if g.straggler else None)
            for g in self._rows.values()
        ]

    def arm_of(self, running: RunningGroup) -> Arm:
        """Whether a batch is held for the group; what was decided once stays so."""
        group = self._rows[running.id]
        return Arm(group.straggler) if group.straggler else self._decide(group)

    def _decide(self, group: Group) -> Arm:
        rollout = self._spec.rollout
        decision = stragglers.decide(
            rollout.stragglers,
            rollout.recovery_share,
            seed=self._spec.seed,
            number=group.number,
            requeue_number=group.requeue_number,
            max_requeues=rollout.max_requeues,
        )
        group.straggler, group.propensity = decision.arm, decision.propensity
        group.straggler_at = timezone.now()
        group.save(update_fields=["straggler", "propensity", "straggler_at"])
        if decision.arm is Arm.WAIT:
            text = f"The next batch is held for group {group.number}, which it would leave behind."
            record_event(self._run, "batch_held", text, group=str(group.id), propensity=decision.propensity)
        return decision.arm

    def leave_behind(self, left: Sequence[RunningGroup]) -> None:
        """Cancel groups that no later batch may hold; their tasks come again."""
        if not left:
            return
        groups = [self._rows[running.id] for running in left]
        bound = self._spec.rollout.max_staleness
        give_up(groups, Outcome.STALE, f"still running when the bound of {bound} left it behind")
        numbers = ", ".join(str(group.number) for group in groups)
        text = f"Stragglers were cancelled, too old for the next batch: groups {numbers}."
        record_event(self._run, "stragglers_cancelled", text, WARNING, groups=[str(group.id) for group in groups])
