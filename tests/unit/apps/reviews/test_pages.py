"""The review page is blind: nothing in its HTML gives the verdict or the policy away."""

import pytest
from django.db.models import F
from django.test import Client

from apps.reviews.models import ReviewItem
from apps.runs.models import Episode


@pytest.fixture
def text_for(make_queue):
    make_queue(heldout=2)

    def get(user, path="/review/"):
        client = Client()
        client.force_login(user)
        response = client.get(path)
        assert response.status_code == 200
        return response.content.decode()

    return get


def test_the_item_shows_the_conversation_and_hides_verdict_and_policy(text_for, reviewer):
    Episode.objects.update(seed=F("seed") + 730_018_000)
    text = text_for(reviewer)
    item = ReviewItem.objects.get(reserved_by=reviewer)
    episode = item.episode
    assert str(item.pk) in text
    assert "calc(expression=&#39;6*7&#39;)" in text
    assert "A worked example" not in text
    page = text[text.index("<main") :]
    for secret in (
        episode.reason_code, "the verifier&#39;s words", "prompted", "baseline", item.why, item.stratum,
        str(episode.pk), str(episode.group_id), str(episode.seed),
    ):  # fmt: skip
        assert secret not in page, secret


def test_content_is_escaped(text_for, reviewer):
    Episode.objects.update(answer="<script>alert(1)</script>")
    text = text_for(reviewer)
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_who_may_not_label_sees_progress_only(text_for, viewer):
    text = text_for(viewer)
    assert "review:label" in text
    assert "data-review" not in text
    assert not ReviewItem.objects.filter(reserved_by=viewer).exists()


def test_a_submitter_does_not_judge_their_own_evaluation(text_for, engineer):
    assert "data-review" not in text_for(engineer)


def test_rates_say_when_they_are_not_measured(text_for, reviewer):
    text = text_for(reviewer, "/review/rates/")
    assert "not measured" in text
    assert "4 episodes wait for your label" in text
