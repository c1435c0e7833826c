"""Pages of suites, tasks, policies, evaluations and episodes: held-out content needs its own right."""

import msgspec
import pytest
from django.test import Client

from apps.audit.models import AuditEvent
from apps.evaluations.services import policy_arm, start_evaluation
from apps.runs.models import Episode
from apps.tasks.models import Task
from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.contracts.messages import Sampling
from gpu_workers.contracts.tasks import Message, TaskBundle, ToolSpec, VerifierSpec
from ratchet.store import get_store
from tests.support.evaluations import Workers, committed, make_policy, make_suite

SECRET = "How heavy is <b>the moon</b>?"


def get(user, path: str, status: int = 200) -> str:
    client = Client()
    client.force_login(user)
    response = client.get(path)
    assert response.status_code == status, path
    return response.content.decode()


@pytest.fixture
def suite(project):
    suite = make_suite(project, train=2, dev=2, heldout=2)
    bundle = TaskBundle(
        key="k",
        prompt=[Message(role="user", content=SECRET)],
        tools=[ToolSpec(name="calc", description="Computes")],
        verifier=VerifierSpec(kind=VerifierKind.NUMBER, expected="7342"),
    )
    key = get_store().put(msgspec.json.encode(bundle))
    suite.tasks.update(bundle=key, prompt_preview=SECRET)
    return suite


@pytest.fixture
def finished(project, engineer, suite, monkeypatch):
    """One finished evaluation a split."""
    workers = Workers(monkeypatch)
    arms = [make_policy(project, "prompted", adapter=False), make_policy(project, "supervised", kind="supervised")]

    def run(split: str):
        with committed():
            evaluation = start_evaluation(
                project=project, suite=suite, split=split, purpose="baseline", arms=[policy_arm(p) for p in arms],
                samples=1, sampling=Sampling(temperature=0.0), by=engineer,
            )  # fmt: skip
        workers.work(lambda task, adapter, index: {"success": bool(adapter), "answer": "<i>42</i>"})
        return evaluation

    return {split: run(split) for split in ("dev", "heldout")}


def episode_of(evaluation) -> Episode:
    return Episode.objects.filter(group__evaluation_item__evaluation=evaluation).first()


def test_the_suite_page_counts_every_split_and_closes_heldout_prompts(suite, engineer, approver):
    closed, open_page = get(engineer, f"/suites/{suite.pk}/"), get(approver, f"/suites/{suite.pk}/")
    assert "held-out" in closed.lower()
    assert closed.count("closed: held-out") == 2
    assert "closed: held-out" not in open_page
    assert "&lt;b&gt;the moon" in open_page
    assert "<b>the moon" not in open_page
    assert "nobody has looked yet" in closed
    assert "heldout-001" not in get(engineer, f"/suites/{suite.pk}/?split=dev&q=dev")


def test_a_heldout_task_is_closed_without_the_right_and_audited_with_it(suite, engineer, approver):
    task = Task.objects.get(key="heldout-000")
    closed = get(engineer, f"/tasks/{task.pk}/")
    assert "heldout:read" in closed
    assert "7342" not in closed
    assert "moon" not in closed
    assert not AuditEvent.objects.filter(tag="user:heldout:read").exists()
    assert "7342" in get(approver, f"/tasks/{task.pk}/")
    assert AuditEvent.objects.filter(tag="user:heldout:read", actor_name="pam").count() == 1


def test_a_train_task_is_open_to_members_and_unknown_to_strangers(suite, engineer, stranger):
    task = Task.objects.get(key="train-000")
    text = get(engineer, f"/tasks/{task.pk}/")
    assert "7342" in text
    assert "&lt;b&gt;the moon" in text
    assert "denied" in text
    get(stranger, f"/tasks/{task.pk}/", 404)
    get(stranger, f"/suites/{suite.pk}/", 404)


def test_an_evaluation_shows_arms_with_intervals_and_closes_heldout_answers(finished, engineer, approver, stranger):
    dev, heldout = (finished[split] for split in ("dev", "heldout"))
    text = get(engineer, f"/evaluations/{dev.pk}/")
    assert "supervised" in text
    assert "1.000" in text
    assert "dev-000" in text
    closed = get(engineer, f"/evaluations/{heldout.pk}/")
    assert "Answers are closed to you" in closed
    assert "heldout-000" not in closed
    assert "heldout-000" in get(approver, f"/evaluations/{heldout.pk}/")
    get(stranger, f"/evaluations/{dev.pk}/", 404)
    assert str(heldout.pk) in get(engineer, "/evaluations/?purpose=baseline")
    assert str(heldout.pk) not in get(engineer, "/evaluations/?purpose=gate")


def test_an_episode_shows_its_turns_and_what_cannot_be_loaded(finished, engineer, viewer, reviewer):
    episode = episode_of(finished["dev"])
    text = get(engineer, f"/episodes/{episode.pk}/")
    assert "calc(expression=&#39;6*7&#39;)" in text
    assert "&lt;i&gt;42&lt;/i&gt;" in text
    assert "<i>42" not in text
    assert "The token file of group" in text  # the scripted group file is none: said, and the page stands
    assert get(viewer, f"/groups/{episode.group_id}/").count('class="sib"') == 1
    get(reviewer, f"/episodes/{episode.pk}/", 404)  # reviewers label blind: they have no episode:read


def test_a_heldout_episode_needs_its_own_right(finished, engineer, approver):
    episode = episode_of(finished["heldout"])
    refused = get(engineer, f"/episodes/{episode.pk}/", 403)
    assert "heldout:read" in refused
    assert "6*7" not in refused
    get(engineer, f"/groups/{episode.group_id}/", 403)
    assert "6*7" in get(approver, f"/episodes/{episode.pk}/")
    assert AuditEvent.objects.filter(tag="user:heldout:read", actor_name="pam").exists()


def test_a_policy_page_says_how_good_it_was_measured(finished, project, engineer, stranger):
    policy = project.policies.get(slug="supervised")
    text = get(engineer, f"/policies/{policy.pk}/")
    assert "It solves 1.000 of the held-out tasks of sums@1" in text
    assert policy.adapter_sha256 in text
    assert "n = 2" in text
    get(stranger, f"/policies/{policy.pk}/", 404)
    assert "Not measured" not in text
