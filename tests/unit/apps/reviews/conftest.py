"""Fixtures of review tests: a held-out evaluation whose every episode is in the queue."""

import pytest

from apps.evaluations.services import policy_arm, start_evaluation
from apps.reviews import sampling, services
from apps.runs.models import Group
from gpu_workers.contracts.messages import Sampling
from tests.support.evaluations import Workers, committed, make_policy, make_suite


@pytest.fixture
def workers(monkeypatch) -> Workers:
    return Workers(monkeypatch)


@pytest.fixture
def make_queue(project, engineer, workers, monkeypatch):
    """Run `heldout` tasks, two samples each, and draw with the given probability."""

    def make(probability: float = 1.0, heldout: int = 4):
        monkeypatch.setattr(sampling, "RANDOM_SLICE_EVALUATION", probability)
        suite = make_suite(project, heldout=heldout)
        arms = [policy_arm(make_policy(project, "prompted", adapter=False))]
        with committed():
            evaluation = start_evaluation(
                project=project, suite=suite, split="heldout", purpose="baseline", arms=arms, samples=2,
                sampling=Sampling(temperature=1.0), by=engineer,
            )  # fmt: skip
        workers.work(lambda task, adapter, index: {"success": index == 0, **_tamper(task, index)})
        for group_id in workers.stored:
            services.sample_group(Group.objects.get(pk=group_id))
        return evaluation

    return make


def _tamper(task, index):
    return {"reason_code": "TAMPER_DETECTED"} if task.key == "heldout-000" and index == 1 else {}
