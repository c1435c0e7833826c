"""Policies, channels and their moves: what is refused, what is written, who is told."""

import json

import pytest
import redis
from django.db import IntegrityError, transaction

from apps.accounts.models import Membership, Role, User
from apps.audit.models import AuditEvent
from apps.policies.models import Channel, ChannelMove, Gateway, MoveKind, Policy, PolicyKind
from apps.policies.selectors import channel_status, find_base_model, lineage, resolve_policy
from apps.policies.services import (
    acknowledge,
    create_policy,
    move_channel,
    register_base_model,
    rollback_channel,
    set_channel,
)
from ratchet.problems import Problem


@pytest.fixture
def notices(monkeypatch) -> list[dict]:
    told: list[dict] = []
    monkeypatch.setattr("apps.accounts.notices._publish", lambda notice: told.append(dict(notice)))
    return told


@pytest.fixture
def channel(project, policies, approver) -> Channel:
    return set_channel(project=project, name="production", policy=policies[1], by=approver)


def test_a_policy_is_complete_or_not_made(project, other_project, base_model, policies, engineer, viewer):
    values = {"project": project, "slug": "new", "title": "", "kind": PolicyKind.PROMPT, "base_model": base_model}
    other = register_base_model(slug="other", context_length=10, by=None)
    bad = [
        ({"slug": "no way"}, "slug", 400),
        ({"slug": "prompted"}, "slug", 409),
        ({"kind": "magic"}, "kind", 400),
        ({"adapter": "runs/x"}, "adapter_sha256", 400),
        ({"parent": policies[0], "base_model": other}, "base_model", 400),
    ]
    for changes, path, status in bad:
        with pytest.raises(Problem) as refused:
            create_policy(by=engineer, **{**values, **changes})
        assert (refused.value.status, refused.value.errors[0]["path"]) == (status, path)
    with pytest.raises(Problem) as forbidden:
        create_policy(by=viewer, **values)
    assert forbidden.value.status == 403
    assert Policy.objects.count() == 3
    made = create_policy(by=engineer, **values)
    assert (made.engine_name, made.created_by, made.title) == ("", engineer, "new")
    assert AuditEvent.objects.filter(tag="user:policy:create", actor_name="ed").count() == 1


def test_a_parent_of_another_project_is_refused(other_project, base_model, policies):
    with pytest.raises(Problem) as refused:
        create_policy(
            project=other_project, slug="x", title="", kind="prompt", base_model=base_model, parent=policies[0], by=None
        )
    assert refused.value.errors[0]["path"] == "parent"


def test_lineage_runs_from_base_to_children(policies, engineer, stranger):
    family = lineage(engineer, policies[1])
    assert (family.ancestors, family.children) == ([policies[0]], [policies[2]])
    assert lineage(stranger, policies[1]).ancestors == []


def test_equal_adapters_share_a_name_on_engines(policies):
    assert policies[1].engine_name == "policy-" + "s" * 16


def test_unknown_names_say_what_is_known(project, policies):
    with pytest.raises(Problem, match="prompted, reinforced, supervised"):
        resolve_policy(project, "nope")
    with pytest.raises(Problem, match="registered base models: tiny"):
        find_base_model("huge")


def test_a_model_keeps_its_weights(base_model):
    register_base_model(slug="tiny", title="Tiny", context_length=1024, fingerprint="a" * 64, by=None)
    updated = register_base_model(slug="tiny", title="Renamed", context_length=1024, fingerprint="a" * 64, by=None)
    assert (updated.pk, updated.title) == (base_model.pk, "Renamed")
    with pytest.raises(Problem, match="not those registered"):
        register_base_model(slug="tiny", context_length=1024, fingerprint="b" * 64, by=None)


def test_a_channel_is_set_up_once(project, policies, channel, approver, engineer):
    assert (channel.policy, channel.epoch) == (policies[1], 1)
    assert set_channel(project=project, name="production", policy=policies[1], by=approver).epoch == 1
    with pytest.raises(Problem, match="promote through a gate"):
        set_channel(project=project, name="production", policy=policies[2], by=approver)
    with pytest.raises(Problem) as refused:
        set_channel(project=project, name="canary", policy=policies[2], by=engineer)
    assert refused.value.status == 403
    assert not Channel.objects.filter(name="canary").exists()


def test_nobody_serves_their_own_policy_by_a_new_channel(project, base_model, approver):
    admin = User.objects.create_user("ann")
    Membership.objects.create(user=admin, project=project, role=Role.ADMIN)
    values = {"slug": "own", "title": "", "kind": "prompt", "base_model": base_model}
    own = create_policy(project=project, by=admin, **values)
    with pytest.raises(Problem) as refused:
        set_channel(project=project, name="canary", policy=own, by=admin)
    assert (refused.value.status, refused.value.code) == (409, "separation_of_duties")
    assert not Channel.objects.filter(name="canary").exists()
    assert set_channel(project=project, name="canary", policy=own, by=approver).policy == own
    assert set_channel(project=project, name="canary", policy=own, by=admin).epoch == 1, "repeating changes nothing"


def test_a_move_is_written_audited_and_announced_on_commit(
    channel, policies, approver, notices, django_capture_on_commit_callbacks
):
    with django_capture_on_commit_callbacks(execute=True):
        move = move_channel(
            channel=channel, to_policy=policies[2], kind=MoveKind.PROMOTION, by=approver, reason="better"
        )
        assert notices == []
    assert notices == [{"kind": "channel_moved", "project": "demo", "channel": "production", "epoch": 2}]
    assert (move.from_policy, move.to_policy, move.epoch, move.by) == (policies[1], policies[2], 2, approver)
    event = AuditEvent.objects.filter(tag="user:channel:move").last()
    assert (event.before["policy"], event.after["policy"], event.reason) == ("supervised", "reinforced", "better")
    assert event.evidence["adapter_sha256"] == "r" * 64
    with pytest.raises(Problem, match="already"):
        move_channel(channel=channel, to_policy=policies[2], kind=MoveKind.PROMOTION, by=approver, reason="again")


def test_who_may_not_move_and_where_to_not(channel, policies, engineer, stranger, approver, other_project, base_model):
    foreign = create_policy(
        project=other_project, slug="theirs", title="", kind="prompt", base_model=base_model, by=None
    )
    for user, policy, status in ((engineer, policies[2], 403), (stranger, policies[2], 404), (approver, foreign, 400)):
        with pytest.raises(Problem) as refused:
            move_channel(channel=channel, to_policy=policy, kind=MoveKind.PROMOTION, by=user, reason="")
        assert refused.value.status == status
    assert ChannelMove.objects.count() == 1


def test_rollback_returns_to_what_was_accepted_before_and_no_further(channel, policies, approver, engineer):
    with pytest.raises(Problem, match="no earlier accepted"):
        rollback_channel(channel=channel, by=engineer, reason="bad")
    move_channel(channel=channel, to_policy=policies[2], kind=MoveKind.PROMOTION, by=approver, reason="")
    with pytest.raises(Problem) as outdated:
        rollback_channel(channel=channel, by=engineer, reason="bad", expected_epoch=1)
    assert outdated.value.status == 412
    move = rollback_channel(channel=channel, by=engineer, reason="bad", expected_epoch=2)
    assert (move.to_policy, move.epoch, move.kind) == (policies[1], 3, MoveKind.ROLLBACK)
    with pytest.raises(Problem, match="no earlier accepted"):
        rollback_channel(channel=channel, by=engineer, reason="worse")
    move_channel(channel=channel, to_policy=policies[0], kind=MoveKind.PROMOTION, by=approver, reason="")
    assert rollback_channel(channel=channel, by=None, reason="regression").to_policy == policies[1]
    assert AuditEvent.objects.filter(tag="system:channel:move", actor_name="system").count() == 1


def test_a_move_is_complete_when_every_living_gateway_serves_it(channel, policies, approver):
    assert channel_status(channel).complete is None
    for name in ("g1", "g2"):
        acknowledge(gateway=name, project="demo", channel="production", epoch=1)
    assert channel_status(channel).complete is True
    move_channel(channel=channel, to_policy=policies[2], kind=MoveKind.PROMOTION, by=approver, reason="")
    channel.refresh_from_db()
    acknowledge(gateway="g1", project="demo", channel="production", epoch=2)
    status = channel_status(channel)
    assert (status.complete, status.rollback_to) == (False, policies[1])
    Gateway.objects.filter(name="g2").update(last_seen_at="2020-01-01T00:00Z")  # gone: nobody waits for it
    assert channel_status(channel).complete is True


def test_an_acknowledgement_must_name_what_exists(channel):
    for values, status in (({"channel": "none"}, 404), ({"project": "none"}, 404), ({"epoch": 9}, 409)):
        with pytest.raises(Problem) as refused:
            acknowledge(**{"gateway": "g", "project": "demo", "channel": "production", "epoch": 1, **values})
        assert refused.value.status == status
    assert not Gateway.objects.exists()


def test_the_database_refuses_an_adapter_without_digest(project, base_model):
    with pytest.raises(IntegrityError), transaction.atomic():
        Policy.objects.create(project=project, slug="x", title="x", kind="prompt", base_model=base_model, adapter="a")


def test_a_notice_reaches_subscribers(
    redis_url, settings, channel, policies, approver, django_capture_on_commit_callbacks
):

    settings.REDIS_URL = redis_url
    with redis.Redis.from_url(redis_url) as client, client.pubsub(ignore_subscribe_messages=True) as listener:
        listener.subscribe("ratchet.channels")
        listener.get_message(timeout=30)
        with django_capture_on_commit_callbacks(execute=True):
            move_channel(channel=channel, to_policy=policies[2], kind=MoveKind.PROMOTION, by=approver, reason="")
        message = listener.get_message(timeout=30)
    assert json.loads(message["data"])["epoch"] == 2


def test_a_broker_that_is_down_does_not_stop_a_move(
    settings, channel, policies, approver, caplog, django_capture_on_commit_callbacks
):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    with django_capture_on_commit_callbacks(execute=True):
        move_channel(channel=channel, to_policy=policies[2], kind=MoveKind.PROMOTION, by=approver, reason="")
    assert Channel.objects.get().epoch == 2
    assert "gateways were not told" in caplog.text
