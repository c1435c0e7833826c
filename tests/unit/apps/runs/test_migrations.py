"""Migrations of runs go back with rows that the older schema does not know."""

import pytest
from django.core.management import call_command
from django.db import connection

from apps.evaluations.services import policy_arm, start_evaluation
from apps.runs.models import Episode
from gpu_workers.contracts.messages import Sampling
from tests.support.evaluations import committed, make_policy, make_suite


@pytest.fixture
def episode(transactional_db, project, engineer, workers) -> Episode:
    suite = make_suite(project, dev=1, heldout=1)
    with committed():
        start_evaluation(
            project=project, suite=suite, split="dev", purpose="baseline", sampling=Sampling(), by=engineer,
            arms=[policy_arm(make_policy(project, "p", adapter=False))],
        )  # fmt: skip
    workers.work(lambda task, adapter, index: {"success": False})
    return Episode.objects.get()


def test_a_quarantined_episode_has_no_reward_in_the_older_schema_either(episode):
    Episode.objects.filter(pk=episode.pk).update(verdict="quarantined", reward=None, reason_code="VERIFIER_FLAKY")
    try:
        call_command("migrate", "runs", "0002", verbosity=0)
        with connection.cursor() as cursor:
            cursor.execute("SELECT verdict, reward, reason_code FROM runs_episode")
            assert cursor.fetchall() == [("error", None, "VERIFIER_FLAKY")]
    finally:
        call_command("migrate", verbosity=0)
    episode.refresh_from_db()
    assert (episode.verdict, episode.reward) == ("error", None)
