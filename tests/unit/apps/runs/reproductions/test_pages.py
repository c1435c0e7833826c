"""Reproductions and what the sandbox applied, on the episode's page."""

import msgspec
from django.test import Client

from apps.accounts.models import Role
from apps.runs.models import Group, Reproduction
from gpu_workers.contracts.groups import GroupTranscript, NetworkEvent, NetworkLog
from ratchet.store import get_store
from tests.support.replays import make_task
from tests.support.reproductions import Plane


def get(user, episode, status: int = 200) -> str:
    client = Client()
    client.force_login(user)
    response = client.get(f"/episodes/{episode.pk}/")
    assert response.status_code == status
    return response.content.decode()


def test_the_button_the_wait_and_the_history(plane: Plane, client_of):
    engineer, viewer = plane.world.engineer, plane.world.users[Role.VIEWER]
    episode = plane.store_episode(make_task(), "count()", "roll()", "count()", "Two.")
    button = f'data-post="/api/v1/episodes/{episode.pk}/reproduce/"'
    assert button in get(engineer, episode)
    assert button not in get(viewer, episode)
    plane.ask(client_of(engineer), episode)
    waiting = get(engineer, episode)
    assert button not in waiting and "Being played again" in waiting
    plane.work()
    text = get(viewer, episode)
    assert "1 of 3 tool outputs differs" in text
    assert "asked by lab-engineer" in text
    assert Reproduction.objects.get().calls[1]["reproduced"] in text


def test_another_verdict_stands_beside_the_stored_one(plane: Plane, client_of):
    episode = plane.store_episode(make_task(), "count()", "Two.")
    type(episode).objects.filter(pk=episode.pk).update(
        verdict="pass", reward=1.0, success=True, evidence={"was": "<script>once right"}
    )
    episode.refresh_from_db()
    plane.ask(client_of(plane.world.engineer), episode)
    plane.work()
    text = get(plane.world.engineer, episode)
    assert "Another verdict" in text
    assert "set aside as VERIFIER_FLAKY" in text
    assert "&lt;script&gt;once right" in text and "<script>once" not in text


def test_what_the_sandbox_applied_is_beside_its_log(plane: Plane):
    episode = plane.store_episode(make_task(), "count()", "Two.")
    group = episode.group
    transcript = GroupTranscript.decode(get_store().get(group.transcript))
    sandbox = transcript.episodes[0].sandbox
    sandbox.limits_hit = ["memory"]
    sandbox.network = NetworkLog(
        num_refused=1, events=[NetworkEvent(host="<i>evil.example", port=443, allowed=False, reason="not on the list")]
    )
    Group.objects.filter(pk=group.pk).update(transcript=get_store().put(transcript.encode()))
    text = get(plane.world.engineer, episode)
    assert "bubblewrap" in text and "0 connections allowed, 1 refused" in text and "not on the list" in text
    assert "&lt;i&gt;evil.example" in text and "<i>evil" not in text
    assert msgspec.to_builtins(sandbox)["limits_hit"] == ["memory"] and ">memory<" in text
