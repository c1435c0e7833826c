"""What promotions do when evaluations announce something."""

import logging
from typing import Any

from django.db.models import Q
from django.dispatch import receiver

from apps.evaluations.models import Evaluation
from apps.evaluations.signals import adapters_retiring, evaluation_finished, evaluations_ticked
from apps.evaluations.states import FINAL_STATES
from apps.promotions import jobs
from apps.promotions.models import Gate, GateState
from apps.promotions.regression import RUNNING
from apps.promotions.services import compute_soon

logger = logging.getLogger(__name__)


@receiver(evaluation_finished)
def judge_gate_of(evaluation: Evaluation, **_: Any) -> None:
    for gate in Gate.objects.filter(Q(evaluation=evaluation) | Q(regression=evaluation)):
        compute_soon(gate)


@receiver(evaluations_ticked)
def judge_what_was_missed(**_: Any) -> None:
    """A lost message delays a verdict by one tick at most. One broken gate does not stop the others."""
    due = Gate.objects.filter(
        Q(state=GateState.EVALUATING, evaluation__state__in=FINAL_STATES)
        | Q(regression_result__status=RUNNING, regression__state__in=FINAL_STATES)
    )
    for gate_id in due.values_list("pk", flat=True):
        try:
            jobs.compute(str(gate_id))
        except Exception:
            logger.exception("gate %s could not be judged; the next tick tries again", gate_id)


@receiver(adapters_retiring)
def keep_gated(names: set[str], **_: Any) -> set[str]:
    """Adapters of gates that wait: an approval serves the candidate on the next request."""
    gates = Gate.objects.filter(state__in=[GateState.EVALUATING, GateState.WAITING])
    return {gate.candidate.engine_name for gate in gates.select_related("candidate")} & names
