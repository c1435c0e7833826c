"""The live state of a run: what it measures, what is new since a cursor, and the websocket that pushes it."""

import time

import msgspec
import pytest
from channels.db import database_sync_to_async
from channels.routing import URLRouter
from django.contrib.auth.models import AnonymousUser
from django.db import transaction

from apps.metrics import news
from apps.metrics.consumers import CLOSE_NOT_FOUND, CLOSE_UNAUTHENTICATED
from apps.metrics.feed import MIN_INTERVAL_SECONDS
from apps.metrics.registry import METRICS
from apps.metrics.routing import websocket_urlpatterns
from apps.metrics.selectors import Cursor, live_state, series
from apps.metrics.services import store_points
from apps.runs.events import record_event
from apps.runs.models import Episode, Group, Run, RunState
from gpu_workers.contracts.runspec import parse_run_spec
from tests.support.sockets import Socket
from tests.support.worlds import make_world, run_spec


@pytest.fixture
def trained(world, make_plane):
    plane = make_plane(seed=5, zero_variance=0.2, infrastructure_error=0.1)
    run = plane.submit(world, run_spec())
    plane.play(until=lambda: Run.objects.get(pk=run.pk).state == RunState.TRAINED)
    plane.now = plane.now.replace(year=plane.now.year + 1)  # all rows are settled
    return Run.objects.get(pk=run.pk)


def test_the_strip_and_the_tables_agree_with_the_rows(trained):
    state = live_state(trained)
    strip, tables = state["strip"], state["tables"]
    assert (strip["state"], strip["step"], strip["total_steps"]) == ("trained", 4, 4)
    assert strip["eta_seconds"] is None
    rows = {row["version"]: row for row in tables["rollouts"]}
    for version, row in rows.items():
        groups = Group.objects.filter(run=trained, policy_version=version, num_scored__gt=0)
        means = [group.reward_mean for group in groups]
        assert row["groups"] == len(means)
        assert row["reward"]["mean"] == pytest.approx(sum(means) / len(means))
        if len(means) > 1:
            assert row["reward"]["low"] <= row["reward"]["mean"] <= row["reward"]["high"]
    assert strip["latency"]["p50"] == pytest.approx(3.0)  # episodes take 1.5, 2.5, 3.5 and 4.5 s
    assert strip["latency"]["n"] == Episode.objects.filter(group__run=trained).count()
    histogram = tables["reward_histogram"]
    assert sum(sum(row["counts"]) for row in histogram["rows"]) == strip["latency"]["n"]
    assert tables["staleness"]["n"] == 32
    assert max(tables["staleness"]["counts"]) <= tables["staleness"]["bound"]
    n = strip["latency"]["n"]  # each episode is 1.0 s at the engine, 0.1 s of it in its queue
    assert tables["time"]["seconds"]["engine"] == pytest.approx(n * 0.9)
    assert set(tables["time"]["seconds"]) == set(tables["time"]["definitions"])
    distributions = tables["distributions"]
    assert distributions["rollout/latency_seconds"]["n"] == n
    assert distributions["rollout/latency_seconds"]["p50"] == pytest.approx(3.0)
    assert distributions["rollout/length_tokens"]["mean"] == 10
    assert distributions["train/staleness"]["n"] == 32
    assert state["ledger"]["adds_up"] is True


def test_a_cursor_gives_only_what_is_new(trained):
    first = live_state(trained)
    again = live_state(trained, Cursor(**first["cursor"]), known_tables=first["mark"])
    assert first["points"]
    assert again["points"] == []
    assert again["events"] == []
    assert again["tables"] is None
    store_points(trained, 5, {"train/loss": float("nan")}, measured=False, at=trained.created_at)
    newer = live_state(trained, Cursor(**first["cursor"]), known_tables=first["mark"])
    assert newer["cursor"]["points"] == first["cursor"]["points"] + 1
    assert newer["points"] == [[newer["cursor"]["points"], "train/loss", 5, "NaN", 0, False]]


def test_rows_of_the_last_seconds_come_again(world, make_plane):
    """A transaction that commits late must not hide behind a cursor that has passed its ids."""
    plane = make_plane()
    run = plane.submit(world, run_spec())
    state = live_state(run)
    assert state["events"]
    assert state["cursor"]["events"] == 0
    plane.pass_time(10)
    assert live_state(run)["cursor"]["events"] >= state["events"][-1]["id"]


def test_too_much_asks_for_the_whole_series(trained, monkeypatch):
    monkeypatch.setattr(news, "MAX_POINTS", 3)
    state = live_state(trained)
    assert state["refetch"] is True
    assert state["points"] == []
    assert state["cursor"]["points"] == trained.metric_head.revision


def test_every_stored_series_is_in_the_registry(trained):
    names = {item["name"] for item in series(trained)}
    assert {"train/loss", "rollout/reward_mean", "group/reward_mean", "fleet/pause_seconds"} <= names
    assert names <= set(METRICS)
    loss = series(trained, ["train/loss"])
    assert loss[0]["steps"] == [1, 2, 3, 4]
    assert (loss[0]["source"], loss[0]["measured"]) == ("reported", False)


def open_socket(run, user) -> Socket:
    return Socket(URLRouter(websocket_urlpatterns), f"/ws/runs/{run.pk}/", user)


@pytest.mark.django_db(transaction=True)
async def test_the_socket_answers_a_cursor_and_pushes_changes():
    world, run, event = await database_sync_to_async(_world_with_run)()
    socket = open_socket(run, world.engineer)
    await socket.connect()
    await socket.send_json({"cursor": 0, "events": 0})
    state = await socket.receive_json()
    assert [row["id"] for row in state["events"]] == [event.id]
    assert state["strip"]["state"] == "queued"
    await database_sync_to_async(_record)(run, "news")
    pushed = await socket.receive_json()
    while pushed["events"][-1]["message"] != "news":  # the last seconds' events come again
        pushed = await socket.receive_json()
    assert pushed["tables"] is None  # nothing in them changed
    await socket.close()


@pytest.mark.django_db(transaction=True)
async def test_what_says_nothing_is_answered_with_what_to_send():
    world, run, _ = await database_sync_to_async(_world_with_run)()
    socket = open_socket(run, world.engineer)
    await socket.connect()
    for message in ({"text": "{"}, {"text": "[" * 100_000}, {"text": "[1]"}, {"bytes": b"\xff"}):
        await socket.send_input({"type": "websocket.receive", **message})
        assert "cursor" in (await socket.receive_json())["error"]
    await socket.send_json({"cursor": "x" * 10, "events": -1, "mark": [1]})
    assert (await socket.receive_json())["strip"]["state"] == "queued"
    await socket.close()


@pytest.mark.django_db(transaction=True)
async def test_many_commits_make_few_pushes():
    world, run, _ = await database_sync_to_async(_world_with_run)()
    socket = open_socket(run, world.engineer)
    await socket.connect()
    await socket.send_json({})
    await socket.receive_json()
    started = time.monotonic()
    await database_sync_to_async(lambda: [_record(run, f"news {number}") for number in range(20)])()
    seconds = time.monotonic() - started
    pushes = []
    while not pushes or pushes[-1]["events"][-1]["message"] != "news 19":
        pushes.append(await socket.receive_json())
    assert len(pushes) <= 3 + seconds / MIN_INTERVAL_SECONDS
    await socket.close()


@pytest.mark.django_db(transaction=True)
async def test_strangers_get_nothing():
    _, run, _ = await database_sync_to_async(_world_with_run)()
    other = await database_sync_to_async(make_world)(slug="other")
    for user, code in ((other.engineer, CLOSE_NOT_FOUND), (AnonymousUser(), CLOSE_UNAUTHENTICATED)):
        socket = open_socket(run, user)
        await socket.connect()
        assert (await socket.receive_output())["code"] == code
        await socket.send_json({"cursor": 0})
        assert await socket.receive_nothing()
        await socket.close()


def _world_with_run():
    world = make_world()
    run = Run.objects.create(
        project=world.project, number=1, spec=_full(run_spec()), spec_hash="x" * 64, suite=world.suite,
        policy=world.policy, total_steps=4,
    )  # fmt: skip
    return world, run, record_event(run, "queued", "submitted")


def _record(run, message):
    with transaction.atomic():
        record_event(run, "note", message)


def _full(spec):
    return msgspec.to_builtins(parse_run_spec(spec))
