"""A list asks the database for one row as often as for many: nothing that it shows is fetched row by row."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.evaluations.services import policy_arm, start_evaluation
from apps.runs.models import Group, Run
from gpu_workers.contracts.messages import Sampling
from tests.support.evaluations import committed, make_policy, make_suite
from tests.support.worlds import make_world

NUM_ROWS = 4


@pytest.fixture
def lists(project, engineer, workers) -> list[str]:
    world = make_world()
    names = {"project": project, "suite": world.suite, "policy": world.policy, "created_by": engineer}
    runs = [Run.objects.create(number=number, spec={}, spec_hash="x" * 64, **names) for number in range(NUM_ROWS)]
    suite = make_suite(project, dev=NUM_ROWS, heldout=1)
    with committed():
        start_evaluation(
            project=project, suite=suite, split="dev", purpose="baseline", sampling=Sampling(), by=engineer,
            arms=[policy_arm(make_policy(project, "p", adapter=False))],
        )  # fmt: skip
    workers.work(lambda task, adapter, index: {"success": True})
    for number, group in enumerate(Group.objects.all()):
        Group.objects.filter(pk=group.pk).update(run=runs[0], number=number)
    return ["runs/?", f"runs/{runs[0].pk}/groups/?", "episodes/?", f"episodes/?run={runs[0].pk}&"]


def test_a_list_of_many_rows_takes_as_many_statements_as_a_list_of_one(lists, engineer, client):
    client.force_login(engineer)
    for path in lists:
        taken = []
        for size in (1, 1, NUM_ROWS):  # the first may fill caches
            with CaptureQueriesContext(connection) as queries:
                body = client.get(f"/api/v1/{path}page_size={size}").json()
            taken.append(len(queries))
            assert len(body["results"]) == size, path
        assert taken[1] == taken[2], path
