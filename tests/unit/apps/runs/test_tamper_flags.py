"""Tamper flags on their way from a worker's report to the episode, its page and the API."""

import pytest
from django.urls import reverse

from apps.evaluations.services import policy_arm, start_evaluation
from apps.runs.models import Episode
from gpu_workers.contracts.enums import FlagSeverity
from gpu_workers.contracts.groups import TamperFlag
from gpu_workers.contracts.messages import Sampling
from tests.support.evaluations import committed, make_policy, make_suite


def flag(severity: FlagSeverity, **fields: object) -> TamperFlag:
    values = {"rule": "exit.hard", "pattern": 2, "message": "it ends processes", "where": "file a.py, line 1"}
    return TamperFlag(severity=severity, **{**values, **fields})  # type: ignore[arg-type]


OUTCOMES = {
    0: {"success": True},
    1: {"success": True, "flags": [flag(FlagSeverity.SUSPICION)]},
    2: {"flags": [flag(FlagSeverity.ATTEMPT, excerpt="<b>os._exit(0)</b>\0")]},
    3: {"reason_code": "FORBIDDEN_ACCESS"},
}


@pytest.fixture
def episodes(project, engineer, workers):
    suite = make_suite(project, dev=4, heldout=1)
    with committed():
        start_evaluation(
            project=project, suite=suite, split="dev", purpose="baseline", sampling=Sampling(), by=engineer,
            arms=[policy_arm(make_policy(project, "p", adapter=False))],
        )  # fmt: skip
    workers.work(lambda task, adapter, index: OUTCOMES[int(task.key[-1])])
    return list(Episode.objects.order_by("group__task__position"))


def test_what_counts_as_hacking_is_more_than_a_suspicion(episodes):
    assert [episode.tamper for episode in episodes] == [False, False, True, True]
    assert [[f["severity"] for f in episode.flags] for episode in episodes] == [[], ["suspicion"], ["attempt"], []]
    assert episodes[2].flags[0] == {
        "rule": "exit.hard", "pattern": 2, "severity": "attempt", "message": "it ends processes",
        "where": "file a.py, line 1", "excerpt": "<b>os._exit(0)</b>�",
    }  # fmt: skip
    assert episodes[1].success and episodes[1].reward == 1.0


def test_the_page_and_the_api_show_the_evidence_as_text(episodes, engineer, client):
    client.force_login(engineer)
    page = client.get(reverse("episode", args=[episodes[2].pk])).content.decode()
    assert "What the tamper detectors saw" in page and "Counts as an attempt at reward hacking" in page
    assert "&lt;b&gt;os._exit(0)" in page and "<b>os._exit" not in page
    clean = client.get(reverse("episode", args=[episodes[0].pk])).content.decode()
    assert "tamper detectors" not in clean and "reward hacking" not in clean
    body = client.get(f"/api/v1/episodes/{episodes[2].pk}/").json()
    assert body["tamper"] is True and body["flags"][0]["where"] == "file a.py, line 1"
