"""The review queue: drawn with known probabilities, blind, reserved, and nothing is lost."""

import json
from datetime import timedelta

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from apps.accounts.models import Membership, Role, User
from apps.accounts.services import issue_token
from apps.audit.models import AuditEvent
from apps.policies.models import Policy
from apps.reviews.models import ItemState, Label, ReviewItem
from apps.reviews.selectors import blind_item, labellable_items, num_waiting, summary, verifier_rates
from apps.reviews.services import label_item, next_item, sample_group, skip_item, undo_label
from apps.runs.models import Episode, Group, Run
from ratchet.problems import Problem

NEXT = "/api/v1/reviews/next/"


@pytest.fixture
def colleague(project) -> User:
    user = User.objects.create_user("roy", password="a good password")
    Membership.objects.create(user=user, project=project, role=Role.REVIEWER)
    return user


def refusal(call, **kwargs) -> str:
    with pytest.raises(Problem) as caught:
        call(**kwargs)
    return caught.value.code


def test_every_tampered_episode_and_a_random_slice_are_drawn(make_queue):
    make_queue(probability=0.3, heldout=30)
    drawn = ReviewItem.objects.all()
    tampered = Episode.objects.filter(tamper=True)
    assert tampered.count() == 1
    assert drawn.get(episode=tampered.get()).inclusion_probability == 1.0
    random_slice = drawn.filter(why="random slice")
    assert 8 <= random_slice.count() <= 28  # 59 episodes at .3
    assert set(random_slice.values_list("inclusion_probability", flat=True)) == {0.3}
    assert set(drawn.values_list("stratum", flat=True)) == {
        "pass|clean|prompt|evaluation", "fail|clean|prompt|evaluation", "fail|tamper|prompt|evaluation",
    }  # fmt: skip
    before = drawn.count()
    assert sum(sample_group(group) for group in Group.objects.all()) == 0
    assert drawn.count() == before


def test_a_pass_under_suspicion_is_drawn_whole_and_a_fail_is_not(make_queue):
    make_queue(probability=0.3, heldout=30)
    ReviewItem.objects.all().delete()
    flag = {"rule": "daemon.detached", "severity": "suspicion"}
    clean = Episode.objects.filter(tamper=False).order_by("pk")
    passed = set(clean.filter(verdict="pass").values_list("pk", flat=True)[:5])
    failed = set(clean.filter(verdict="fail").values_list("pk", flat=True)[:5])
    Episode.objects.filter(pk__in=passed | failed).update(flags=[flag])
    for group in Group.objects.all():
        sample_group(group)
    drawn = ReviewItem.objects.filter(stratum="pass|suspected|prompt|evaluation")
    assert set(drawn.values_list("episode_id", flat=True)) == passed
    assert set(drawn.values_list("inclusion_probability", "why")) == {(1.0, "passed under suspicion")}
    assert 0.25 <= min(drawn.values_list("position", flat=True)) <= max(drawn.values_list("position", flat=True)) < 0.5
    assert not ReviewItem.objects.filter(stratum__startswith="fail|suspected").exists()


def test_what_the_two_verifiers_see_differently_is_drawn_whole_and_offered_first(make_queue):
    make_queue(probability=0.3, heldout=30)
    ReviewItem.objects.all().delete()
    passed = Episode.objects.filter(verdict="pass", tamper=False)
    disputed = set(passed.order_by("pk").values_list("pk", flat=True)[:6])
    passed.update(audit_verdict="pass", audit_score=1.0)
    Episode.objects.filter(pk__in=disputed).update(audit_verdict="fail", audit_score=0.0)
    failed = Episode.objects.filter(verdict="fail", tamper=False)
    failed.update(audit_verdict="error")  # the audit verifier has no word on these: no disagreement
    for group in Group.objects.all():
        sample_group(group)
    drawn = ReviewItem.objects.filter(stratum="pass|disputed|prompt|evaluation")
    assert set(drawn.values_list("episode_id", flat=True)) == disputed
    assert set(drawn.values_list("inclusion_probability", "why")) == {(1.0, "the audit verifier disagrees")}
    assert max(drawn.values_list("position", flat=True)) < 0.25
    rest = ReviewItem.objects.exclude(stratum__contains="disputed").exclude(stratum__contains="tamper")
    assert set(rest.values_list("why", "inclusion_probability")) == {("random slice", 0.3)}


def test_an_episode_without_a_verdict_is_not_drawn(make_queue):
    make_queue()
    group = Group.objects.first()
    ReviewItem.objects.filter(episode__group=group).delete()
    group.episodes.update(verdict="error", reward=None, success=False)
    assert sample_group(group) == 0


def test_an_item_tells_nothing_of_verdict_policy_or_others(make_queue, reviewer, client_of):
    make_queue()
    answer = client_of(reviewer).post(NEXT).json()
    assert answer["num_waiting"] == 8
    item = answer["item"]
    assert [turn["role"] for turn in item["turns"]] == ["assistant", "tool", "assistant"]
    assert item["turns"][1]["result"] == "42" and item["prompt"][0]["content"] == "What is six times seven?"
    text = json.dumps(item).lower()
    for secret in ("verdict", "reward", "reason", "wrong_answer", "tamper", "prompted", "worked example", "stratum",
                   "probability", "the verifier's words", "success", "slice"):  # fmt: skip
        assert secret not in text.replace("problem", ""), secret
    assert "could not be loaded" in item["problem"]  # the task's bundle was never stored here


def test_two_reviewers_get_different_items_and_keep_theirs(make_queue, reviewer, colleague):
    make_queue()
    mine, theirs = next_item(by=reviewer), next_item(by=colleague)
    assert mine != theirs
    assert next_item(by=reviewer) == mine and next_item(by=colleague) == theirs
    assert refusal(label_item, item=theirs, by=reviewer, verdict="pass") == "reservation_lost"


def test_an_expired_reservation_counts_until_somebody_takes_the_item(make_queue, reviewer, colleague):
    make_queue(heldout=1)
    first, second = next_item(by=reviewer), next_item(by=colleague)
    assert next_item(by=reviewer) == first
    ReviewItem.objects.update(reserved_until=timezone.now() - timedelta(seconds=1))
    label_item(item=second, by=colleague, verdict="fail")
    taken = next_item(by=colleague)
    assert taken == first
    assert refusal(label_item, item=first, by=reviewer, verdict="pass") == "reservation_lost"


def test_labels_are_kept_stamped_and_never_changed(make_queue, reviewer):
    make_queue()
    item = next_item(by=reviewer)
    label = label_item(item=item, by=reviewer, verdict="pass", comment="clear", seconds=4.5)
    assert label_item(item=item, by=reviewer, verdict="pass") == label
    assert refusal(label_item, item=item, by=reviewer, verdict="fail") == "labelled_already"
    item.refresh_from_db()
    assert item.state == ItemState.LABELLED and next_item(by=reviewer) != item
    undone = undo_label(item=item, by=reviewer)
    assert undone.state == ItemState.OPEN and undone.reserved_by == reviewer
    again = label_item(item=item, by=reviewer, verdict="cannot_tell")
    assert Label.objects.filter(item=item).count() == 2 and again.undone_at is None
    label.refresh_from_db()
    assert label.verdict == "pass" and label.undone_at is not None
    assert summary(reviewer).num_cannot_tell == 1
    tags = list(AuditEvent.objects.filter(tag__startswith="user:review").order_by("id").values_list("tag", flat=True))
    assert tags == ["user:review:label", "user:review:undo", "user:review:label"]


def test_skipping_needs_a_reason_and_can_be_undone(make_queue, reviewer, colleague):
    make_queue()
    item = next_item(by=reviewer)
    assert refusal(skip_item, item=item, by=reviewer, reason=" ") == "invalid"
    assert refusal(undo_label, item=item, by=reviewer) == "nothing_to_undo"
    skip_item(item=item, by=reviewer, reason="I lack the knowledge")
    item.refresh_from_db()
    assert item.state == ItemState.SKIPPED and summary(reviewer).num_skipped == 1
    assert refusal(label_item, item=item, by=reviewer, verdict="pass") == "item_closed"
    assert refusal(undo_label, item=item, by=colleague) == "nothing_to_undo"
    assert undo_label(item=item, by=reviewer).state == ItemState.OPEN


def test_who_submitted_or_lacks_the_right_gets_nothing(
    make_queue, project, engineer, reviewer, viewer, stranger, owner
):
    evaluation = make_queue()
    assert num_waiting(reviewer) == 8
    for other in (viewer, engineer, stranger):
        assert next_item(by=other) is None
        assert refusal(label_item, item=ReviewItem.objects.first(), by=other, verdict="pass") in (
            "forbidden",
            "not_found",
        )
    evaluation.created_by = reviewer
    evaluation.save()
    assert next_item(by=reviewer) is None and labellable_items(owner).count() == 8


def test_rates_follow_the_labels(make_queue, reviewer, client_of):
    evaluation = make_queue(heldout=8)
    assert verifier_rates(evaluation.suite).disagreement is None
    client = client_of(reviewer)
    while item := client.post(NEXT).json()["item"]:
        passed = ReviewItem.objects.get(pk=item["id"]).episode.success
        answer = client.post(
            f"/api/v1/reviews/{item['id']}/label/", {"verdict": "pass" if passed else "fail", "seconds": 2}
        )
        assert answer.status_code == 201, answer.content
    rates = client.get("/api/v1/reviews/summary/").json()["rates"]
    assert rates["num_labels"] == 16 and rates["disagreement"]["estimate"] == 0
    assert verifier_rates(evaluation.suite).disagreement.high < 0.25


def test_a_missing_transcript_is_said_and_can_be_skipped(make_queue, reviewer):
    make_queue()
    item = next_item(by=reviewer)
    Group.objects.update(transcript="objects/00/missing")
    item.refresh_from_db()
    assert "turns could not be loaded" in blind_item(item).problem


def test_who_made_the_policy_never_labels_its_episodes(make_queue, project, reviewer):
    """However the evaluation came about: by the candidate's author, by its run's, or by a gate somebody else opened."""
    evaluation = make_queue()
    item = next_item(by=reviewer)
    assert item is not None
    policy = evaluation.arms.get().policy
    world = {"project": project, "suite": evaluation.suite, "policy": policy, "spec": {}, "spec_hash": "0" * 64}
    run = Run.objects.create(number=1, created_by=reviewer, **world)
    for changes in ({"created_by": reviewer}, {"run_id": run.pk}):
        Policy.objects.filter(pk=policy.pk).update(**{"created_by": None, "run_id": None, **changes})
        assert next_item(by=reviewer) is None
        with pytest.raises(Problem) as refused:  # an item that was held before does not help
            label_item(item=item, by=reviewer, verdict="pass")
        assert (refused.value.status, refused.value.code) == (403, "separation_of_duties")
    Policy.objects.filter(pk=policy.pk).update(created_by=None, run_id=None)
    assert label_item(item=item, by=reviewer, verdict="pass").reviewer == reviewer


def test_each_look_at_a_held_out_item_is_written_down(make_queue, reviewer, client_of):
    make_queue()
    client = client_of(reviewer)
    looks = AuditEvent.objects.filter(tag="user:heldout:read", actor_name="rita")
    shown = client.post("/api/v1/reviews/next/").json()["item"]
    assert looks.count() == 1
    client.force_login(reviewer)
    assert client.get("/review/").status_code == 200
    assert looks.count() == 2
    client.post(f"/api/v1/reviews/{shown['id']}/label/", {"verdict": "pass"})
    assert client.post(f"/api/v1/reviews/{shown['id']}/undo/").json()["id"] == shown["id"]
    assert looks.count() == 3


def test_an_item_is_never_shown_from_a_kept_answer(make_queue, reviewer, client_of):
    make_queue()
    client, key = client_of(reviewer), {"Idempotency-Key": "the-key"}
    item = client.post(NEXT, headers=key).json()["item"]
    looks = AuditEvent.objects.filter(tag__contains="heldout").count()
    assert client.post(NEXT, headers=key).json()["item"]["id"] == item["id"]
    assert AuditEvent.objects.filter(tag__contains="heldout").count() == looks + 1
    client.post(f"/api/v1/reviews/{item['id']}/skip/", {"reason": "unclear"})
    undo = f"/api/v1/reviews/{item['id']}/undo/"
    assert client.post(undo, headers=key).json()["prompt"] == item["prompt"]
    Membership.objects.filter(user=reviewer).delete()
    assert client.post(NEXT, headers=key).json()["item"] is None
    assert client.post(undo, headers=key).status_code == 404


def test_a_held_out_item_is_judged_only_with_the_right_to_its_content(make_queue, reviewer, client_of):
    make_queue()
    item = client_of(reviewer).post(NEXT).json()["item"]
    secret = issue_token(user=reviewer, name="t", by=reviewer, scopes=["review:read", "review:label"]).secret
    narrow = {"Authorization": f"Bearer {secret}"}
    for verb, body in (("label", {"verdict": "pass"}), ("skip", {"reason": "unclear"}), ("undo", None)):
        answer = APIClient().post(f"/api/v1/reviews/{item['id']}/{verb}/", body, headers=narrow)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), verb
    assert not Label.objects.exists() and ReviewItem.objects.get(pk=item["id"]).state == ItemState.OPEN
    assert client_of(reviewer).post(f"/api/v1/reviews/{item['id']}/label/", {"verdict": "pass"}).status_code == 201
