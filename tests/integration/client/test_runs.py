"""submit, watch, logs, episodes and compare on a run that scripted workers play while the command watches."""

import json
import subprocess
import time
from collections import Counter
from uuid import uuid4

import pytest
import yaml

from apps.evaluations import messaging as evaluation_messaging
from apps.evaluations.selection import choose_checkpoint
from apps.runs.models import Episode, Group, Run, RunEvent, RunState
from gpu_workers.contracts.groups import EpisodeRecord, GroupTranscript, TurnRecord
from ratchet.store import get_store
from tests.support.faulty_proxy import BUSY, LOST, FaultyProxy
from tests.support.plane import ScriptedPlane
from tests.support.scripted import commit
from tests.support.worlds import run_spec

# Django's warning about an export that is not asynchronous; it is of the server, not of the command.
EXPORTS = pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")


@pytest.fixture
def plane(world, monkeypatch) -> ScriptedPlane:
    plane = ScriptedPlane(seed=3)
    plane.install(monkeypatch)
    monkeypatch.setattr(evaluation_messaging, "request_choice", lambda *_: None)
    return plane


def spec(**changes) -> str:
    return yaml.safe_dump({"name": "first", **run_spec(evaluation__dev_tasks=0, **changes)}, sort_keys=False)


def finish(plane: ScriptedPlane, number: int) -> None:
    """Play to the end of training, and choose its only candidate."""
    run = Run.objects.get(number=number)
    plane.play(until=lambda: Run.objects.get(pk=run.pk).state == RunState.TRAINED)
    with commit():
        choose_checkpoint(run.pk)


def test_a_wrong_spec_is_refused_with_path_and_line(ratchet, plane, tmp_path):
    (tmp_path / "spec.yaml").write_text(spec(rollout__group_size=1))
    refused = ratchet("submit", "spec.yaml", code=3).stderr
    line = (tmp_path / "spec.yaml").read_text().splitlines().index("  group_size: 1") + 1
    assert f"spec.yaml:{line}: rollout.group_size  " in refused and "at least 2" in refused
    told = json.loads(ratchet("submit", "-", "--json", "--set", "steps=0", stdin=spec(), code=3).stdout)
    assert told["error"]["errors"][0]["path"] == "steps" and told["error"]["errors"][0]["where"] == "--set"
    assert not Run.objects.exists()


def test_what_is_not_there_is_the_same_error_by_number_and_by_id(ratchet, world):
    for words in (("runs", "show", 999, "--json"), ("--json", "run", "show", uuid4()), ("gates", "--json", "show", 9)):
        error = json.loads(ratchet(*words, "-p", "lab", code=3).stdout)["error"]
        assert (error["code"], error["status"]) == ("not_found", 404) and error["message"]


def test_answers_that_are_lost_make_no_second_run(ratchet, plane, application):
    proxy = FaultyProxy(application.port, [BUSY, LOST, LOST])
    run = json.loads(ratchet("submit", "-", "-p", "lab", "--json", stdin=spec(), RATCHET_URL=proxy.url).stdout)
    assert proxy.num_requests == 4
    assert [str(found.pk) for found in Run.objects.all()] == [run["id"]]
    unsure = FaultyProxy(application.port, [LOST])  # a token is made without a key: never asked for twice
    said = ratchet("tokens", "create", "x", code=3, RATCHET_URL=unsure.url).stderr
    assert "is not known" in said and unsure.num_requests == 1


def test_the_same_key_is_one_run_and_another_spec_with_it_is_refused(ratchet, plane):
    first, again = (json.loads(ratchet("submit", "-", "--key", "k", "--json", stdin=spec()).stdout) for _ in range(2))
    assert first["id"] == again["id"] and Run.objects.count() == 1
    assert "idempotency_key_reused" in ratchet("submit", "-", "--key", "k", stdin=spec(steps=5), code=3).stderr


def test_watching_survives_restarts_and_ends_with_every_point_once(
    ratchet, plane, application, arguments, environment, token_of, tmp_path
):
    ratchet("submit", "-", stdin=spec())
    env = environment(RATCHET_URL=application.url, RATCHET_TOKEN=token_of("engineer"))
    with (tmp_path / "watched").open("w") as out, (tmp_path / "said").open("w") as said:
        watcher = subprocess.Popen(arguments("watch", "1", "--json"), env=env, stdout=out, stderr=said)
    for version in (1, 3):
        plane.play(until=lambda version=version: Run.objects.get().version >= version)
        _until(lambda version=version: f'"step": {version}' in (tmp_path / "watched").read_text())
        application.stop()
        _until(lambda version=version: (tmp_path / "said").read_text().count("reconnecting") > version // 2)
        application.start()
    finish(plane, 1)
    assert watcher.wait(timeout=30) == 0
    lines = [json.loads(line) for line in (tmp_path / "watched").read_text().splitlines()]
    seen = Counter((p["name"], p["step"], p["value"]) for p in lines if p["type"] == "point")
    stored: Counter = Counter()
    for series in json.loads(ratchet("runs", "metrics", 1, "--json").stdout):
        stored.update((series["name"], *pair) for pair in zip(series["steps"], series["values"], strict=True))
    assert seen == stored and len(seen) > 20
    events = [line["id"] for line in lines if line["type"] == "event"]
    logged = [json.loads(line)["id"] for line in ratchet("logs", 1, "--json").stdout.splitlines()]
    assert events == logged and len(events) > 5
    assert (lines[-1]["type"], lines[-1]["state"]) == ("end", "succeeded")


def test_how_a_run_ended_is_the_exit_code(ratchet, plane):
    ratchet("submit", "-", stdin=spec())
    assert "--timeout" in ratchet("watch", "last", "--timeout", "0.1", code=2).stderr
    assert "cancelled" in ratchet("run", "cancel", "last", "--reason", "a test").stdout
    assert "Cancelled by lab-engineer: a test." in ratchet("watch", 1, code=1).stdout


@EXPORTS
def test_episodes_and_comparison_of_runs(ratchet, plane, tmp_path):
    for steps in (2, 3):
        ratchet("submit", "-", stdin=spec(steps=steps))
        finish(plane, steps - 1)
    listed = json.loads(ratchet("episodes", "list", 1, "--verdict", "pass", "--limit", 3, "--json").stdout)
    assert [row["verdict"] for row in listed] == ["pass"] * 3
    ratchet("episodes", "export", 1, "-o", "kept.jsonl")
    kept = [json.loads(line)["id"] for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert sorted(kept) == sorted(
        str(pk) for pk in Episode.objects.filter(group__run__number=1).values_list("pk", flat=True)
    )
    compared = json.loads(ratchet("compare", 1, 2, "--json").stdout)
    assert compared["differences"] == {"steps": [2, 3]}
    assert "spec steps\t2\t3" in ratchet("compare", 1, 2).stdout


@EXPORTS
def test_text_of_others_does_not_steer_the_terminal(ratchet, plane, arguments, environment, application, token_of):
    ratchet("submit", "-", stdin=spec())
    finish(plane, 1)
    hostile = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eedoc\nnext"
    group = Group.objects.first()
    said = EpisodeRecord(index=0, seed=0, stop_reason="answered", turns=[TurnRecord(role="assistant", text=hostile)])
    transcript = GroupTranscript(str(group.pk), group.task.key, group.task.task_hash, [said])
    Group.objects.update(transcript=get_store().put(transcript.encode()))
    Episode.objects.update(answer=hostile, message=hostile)
    RunEvent.objects.update(message=hostile)
    Run.objects.update(name=hostile, status_message=hostile)
    shown = ratchet("episodes", "list", 1, "--limit", 1).stdout
    assert "\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\u202eedoc\\nnext" in shown and len(shown.splitlines()) == 2
    env = environment(RATCHET_URL=application.url, RATCHET_TOKEN=token_of("engineer"), TERM="xterm")
    show = ["episodes", "show", Episode.objects.first().pk]
    export, watch = ["episodes", "export", 1], ["watch", 1]
    for words in (show, [*show, "--json"], export, watch, ["logs", 1], ["runs", "list"]):
        command = " ".join(arguments(*words))
        done = subprocess.run(["script", "-qec", command, "/dev/null"], env=env, capture_output=True, timeout=60)
        text = done.stdout.decode(errors="surrogateescape")
        assert done.returncode == 0 and "owned" in text
        assert not any(bad in text for bad in ("\x1b]", "\x1b[2J", "\x9b", "\u202e", "\x07")), text


def _until(holds, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
