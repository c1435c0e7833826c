"""The REST API of runs: submission, control, reads, exports, permissions."""

import json

import numpy as np
import pytest
from rest_framework.test import APIClient

from apps.runs.models import Episode, Group, Run, RunState
from apps.runs.services import create_group
from apps.tasks.models import SplitName
from gpu_workers.contracts.enums import Purpose
from gpu_workers.contracts.groups import EpisodeTokens, GroupTranscript, TurnRecord, encode_group
from gpu_workers.contracts.messages import Sampling
from ratchet.store import get_store
from tests.support.scripted import commit, episode
from tests.support.worlds import make_world, run_spec


def client_of(world, role="engineer") -> APIClient:
    client = APIClient()
    client.force_authenticate(world.users[role])
    return client


@pytest.fixture
def plane(make_plane):
    return make_plane()


def test_a_submission_answers_202_and_queues(world, plane):
    with commit():
        response = client_of(world).post("/api/v1/runs/", {"project": "lab", "spec": run_spec()})
    assert response.status_code == 202, response.json()
    body = response.json()
    assert response.headers["Location"] == f"/api/v1/runs/{body['id']}/"
    assert (body["number"], body["state"], body["suite"]) == (1, "queued", "sums@1")
    assert body["spec"]["optimiser"]["learning_rate"] == 2e-4  # defaults are frozen in
    assert list(plane.advances) == [body["id"]]
    assert client_of(world).get(response.headers["Location"]).json()["spec_hash"] == body["spec_hash"]


def test_the_same_key_makes_one_run(world, plane):
    answers = [
        client_of(world).post("/api/v1/runs/", {"project": "lab", "spec": run_spec()}, headers={"Idempotency-Key": "k"})
        for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].json()["id"] == answers[1].json()["id"]
    assert Run.objects.count() == 1


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"rollout__group_size": 1}, "rollout.group_size", "at least 2"),
        ({"optimiser__lr": 1}, "optimiser.lr", "unknown"),
        ({"policy": "nobody"}, "policy", "known are base"),
        ({"suite": "nothing"}, "suite", "suites: sums"),
        ({"steps": 0}, "steps", ">= 1"),
        (
            {"rollout__prompts_per_batch": 4096, "rollout__group_size": 64, "rollout__max_staleness": 4},
            "rollout.prompts_per_batch",
            "opens 1,310,720 episodes at once, and the bound is 50,000: at most 156 fit",
        ),
        (
            {"rollout__stragglers": "wait", "rollout__recovery_share": 0.1},
            "rollout.recovery_share",
            "use abort or continue",
        ),
        ({"rollout__stragglers": "hope"}, "rollout.stragglers", "Invalid enum value 'hope'"),
        ({"health__max_grad_norm": -1}, "health.max_grad_norm", ">= 0"),
    ],
)
def test_a_wrong_spec_is_refused_by_its_path(world, plane, change, path, words):
    response = client_of(world).post("/api/v1/runs/", {"project": "lab", "spec": run_spec(**change)})
    body = response.json()
    assert (response.status_code, body["code"]) == (422, "invalid_run_spec")
    assert body["errors"][0]["path"] == path
    assert words in body["errors"][0]["message"]
    assert Run.objects.count() == 0


def test_a_suite_without_failure_modes_is_refused(world, plane):
    world.suite.failure_modes = []
    world.suite.save()
    body = client_of(world).post("/api/v1/runs/", {"project": "lab", "spec": run_spec()}).json()
    assert "failure modes" in body["detail"]


def test_strangers_and_viewers_cannot_submit(world, plane):
    stranger = make_world(slug="other")
    payload = {"project": "lab", "spec": run_spec()}
    assert client_of(stranger).post("/api/v1/runs/", payload).status_code == 404
    assert client_of(world, "viewer").post("/api/v1/runs/", payload).status_code == 403


def test_runs_are_listed_for_members_and_filtered(world, plane):
    stranger = make_world(slug="other")
    plane.submit(world, run_spec())
    second = plane.submit(world, run_spec())
    with commit():
        client_of(world).post(f"/api/v1/runs/{second.id}/cancel/", {"reason": "wrong seed"})
    listed = client_of(world).get("/api/v1/runs/?project=lab&state=queued").json()["results"]
    assert [row["number"] for row in listed] == [1]
    assert client_of(stranger).get("/api/v1/runs/").json()["results"] == []
    assert client_of(stranger).get(f"/api/v1/runs/{second.id}/").status_code == 404
    second.refresh_from_db()
    assert second.state == RunState.CANCELLED
    assert "wrong seed" in second.status_message


def test_pause_holds_admission_and_resume_goes_on(world, plane):
    run = plane.submit(world, run_spec())
    plane.play(until=lambda: Group.objects.filter(run=run).exists())
    with commit():
        assert client_of(world).post(f"/api/v1/runs/{run.id}/pause/").status_code == 202
    plane.play(max_events=plane.events + 100)
    count = Group.objects.filter(run=run).count()
    assert count == 4
    run.refresh_from_db()
    assert (run.state, run.step) == (RunState.PAUSED, 0)
    with commit():
        client_of(world).post(f"/api/v1/runs/{run.id}/resume/")
    plane.play(until=lambda: Run.objects.get(pk=run.id).state == RunState.TRAINED)
    assert Run.objects.get(pk=run.id).state == RunState.TRAINED


def test_retry_needs_a_final_run_and_makes_a_new_one(world, plane):
    run = plane.submit(world, run_spec())
    assert client_of(world).post(f"/api/v1/runs/{run.id}/retry/").json()["code"] == "run_not_final"
    with commit():
        client_of(world).post(f"/api/v1/runs/{run.id}/cancel/")
    response = client_of(world).post(f"/api/v1/runs/{run.id}/retry/")
    assert response.status_code == 202
    assert response.json()["retry_of"] == str(run.id)
    assert response.json()["spec_hash"] == run.spec_hash


def test_reads_of_a_trained_run(world, plane):
    run = plane.submit(world, run_spec())
    plane.play(until=lambda: Run.objects.get(pk=run.id).state == RunState.TRAINED)
    client = client_of(world)
    ledger = client.get(f"/api/v1/runs/{run.id}/ledger/").json()
    assert ledger["adds_up"] is True
    assert ledger["closed"]["trained"] == 8
    versions = client.get(f"/api/v1/runs/{run.id}/checkpoints/").json()["results"]
    assert [row["version"] for row in versions] == [1, 2, 3, 4]
    events = client.get(f"/api/v1/runs/{run.id}/events/").json()["results"]
    assert events[0]["code"] == "queued"
    after = client.get(f"/api/v1/runs/{run.id}/events/?after={events[0]['id']}").json()["results"]
    assert after[0]["id"] == events[1]["id"]
    groups = client.get(f"/api/v1/runs/{run.id}/groups/?step=2").json()["results"]
    assert {row["step"] for row in groups} == {2}
    assert len(groups) == 2
    lines = b"".join(client.get(f"/api/v1/runs/{run.id}/episodes.jsonl").streaming_content).splitlines()
    assert len(lines) == Episode.objects.filter(group__run=run).count()
    first = json.loads(lines[0])
    assert (first["group_number"], first["index"], first["step"]) == (1, 0, 1)


def test_an_episode_opens_down_to_its_tokens(world):
    record = episode(0, 1.0, turns=[TurnRecord(role="assistant", text="2", token_start=2, token_stop=4)])
    group = _stored_group(world, SplitName.TRAIN, record)
    row = group.episodes.get()
    body = client_of(world).get(f"/api/v1/episodes/{row.id}/?tokens=1").json()
    assert body["transcript"]["turns"][0]["text"] == "2"
    assert body["tokens"]["ids"] == [5, 6, 7, 8]
    assert body["tokens"]["logprobs"][:2] == [None, None]
    assert body["tokens"]["logprobs"][3] == pytest.approx(-0.25)
    assert body["tokens"]["versions"] == [None, None, 3, 3]


def test_heldout_episodes_need_their_own_right(world):
    group = _stored_group(world, SplitName.HELDOUT, episode(0, 1.0))
    row = group.episodes.get()
    assert client_of(world, "engineer").get(f"/api/v1/episodes/{row.id}/").json()["code"] == "heldout_forbidden"
    assert client_of(world, "engineer").get(f"/api/v1/groups/{group.id}/").status_code == 403
    assert client_of(world, "engineer").get("/api/v1/episodes/").json()["results"] == []
    assert client_of(world, "approver").get(f"/api/v1/episodes/{row.id}/").status_code == 200
    assert len(client_of(world, "approver").get("/api/v1/episodes/").json()["results"]) == 1


def _stored_group(world, split, record):
    task = world.suite.tasks.filter(split=split).first()
    group = create_group(
        project=world.project, task=task, purpose=Purpose.EVALUATION, size=1, policy_adapter="", policy_version=3,
        num_shots=0, sampling=Sampling(),
    )  # fmt: skip
    tokens = EpisodeTokens(
        tokens=np.array([5, 6, 7, 8], np.int32),
        mask=np.array([0, 0, 1, 1], np.uint8),
        logprobs=np.array([0, 0, -0.5, -0.25], np.float32),
        versions=np.array([-1, -1, 3, 3], np.int32),
        reward=1.0,
    )
    store = get_store()
    group.uri = store.put(encode_group([tokens], {}))
    group.transcript = store.put(GroupTranscript(str(group.id), task.key, task.task_hash, [record]).encode())
    group.state, group.outcome = "closed", "scored"
    group.save()
    Episode.objects.create(
        group=group, index=0, seed=0, verdict="pass", success=True, reward=1.0, reason_code="OK", stop_reason="answered"
    )
    return group
