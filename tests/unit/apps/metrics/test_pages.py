"""Pages of runs: the list with its filters, and what the live page is drawn from."""

import json
import re

import pytest
from django.test import Client

from apps.runs import messaging
from apps.runs.events import record_event
from apps.runs.models import Run
from apps.runs.services import submit_run
from tests.support.worlds import World, make_world, run_spec


@pytest.fixture
def world(db, monkeypatch) -> World:
    for name in ("send_rollout", "send_train", "send_fleet", "put", "request_advance", "request_dataset"):
        monkeypatch.setattr(messaging, name, lambda *_, **__: None)
    return make_world()


@pytest.fixture
def run(world) -> Run:
    return submit_run(project=world.project, spec=run_spec(name="<b>bold</b> run"), by=world.engineer)


def get(user, path: str, status: int = 200) -> str:
    client = Client()
    client.force_login(user)
    response = client.get(path)
    assert response.status_code == status
    return response.content.decode()


def test_the_list_is_filtered_by_the_url_and_escapes_names(run, world):
    text = get(world.engineer, "/runs/")
    assert "&lt;b&gt;bold&lt;/b&gt; run" in text
    assert "no data yet" in text
    for query, found in (("state=queued", True), ("state=failed", False), ("q=bold", True), ("suite=other", False)):
        assert (str(run.pk) in get(world.engineer, f"/runs/?{query}")) is found, query
    assert "No run matches these filters." in get(world.engineer, "/runs/?state=failed")
    assert 'value="a&#34; onfocus="' not in get(world.engineer, '/runs/?q=a"+onfocus="')


def test_the_page_of_a_young_run_says_that_there_is_nothing_yet(run, world):
    text = get(world.engineer, f"/runs/{run.pk}/")
    assert "Waiting for its turn" in text
    assert "adds up: 0 = 0" in text
    for chart in ("reward", "reward-spread", "latency", "staleness", "pause", "mismatch", "tool-wait", "entropy"):
        assert f'data-chart="{chart}"' in text


def test_what_the_page_is_drawn_from_cannot_break_out_of_its_block(run, world):
    record_event(run, "note", "</script><script>alert(1)</script>")
    text = get(world.engineer, f"/runs/{run.pk}/")
    assert "<script>alert" not in text
    block = re.search(r'<script type="application/json" id="run-data">(.*?)</script>', text, re.S)
    data = json.loads(block[1])
    assert data["run"] == str(run.pk)
    assert data["view"]["events"][-1]["message"] == "</script><script>alert(1)</script>"
    assert data["cursor"].keys() == {"points", "events"}


def test_only_who_may_control_a_run_gets_the_buttons(run, world):
    assert f"/api/v1/runs/{run.pk}/cancel/" in get(world.engineer, f"/runs/{run.pk}/")
    assert "/cancel/" not in get(world.users["viewer"], f"/runs/{run.pk}/")
    stranger = make_world(slug="other").engineer
    get(stranger, f"/runs/{run.pk}/", 404)
    get(stranger, f"/runs/{run.pk}/groups/", 404)


def test_reviewers_see_no_way_to_episodes(run, world):
    assert "/groups/" not in get(world.users["reviewer"], f"/runs/{run.pk}/")
    get(world.users["reviewer"], f"/runs/{run.pk}/groups/", 403)
    assert "no group matches" in get(world.engineer, f"/runs/{run.pk}/groups/?outcome=stale&step=1")


def test_the_plotly_page_alone_may_write_inline_styles(run, world):
    client = Client()
    client.force_login(world.engineer)
    policies = {path: client.get(path)["Content-Security-Policy"] for path in ("/runs/", f"/runs/{run.pk}/")}
    assert "style-src 'self';" in policies["/runs/"]
    assert "style-src 'self' 'unsafe-inline'" in policies[f"/runs/{run.pk}/"]
    assert all("script-src 'self';" in policy for policy in policies.values())
