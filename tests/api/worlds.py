"""A project with one of everything, and a canary in all that its held-out tasks and their episodes say."""

from dataclasses import dataclass, field
from itertools import count
from typing import Any
from unittest import mock

import numpy as np
from django.utils import timezone

from apps.accounts.invitations import invite
from apps.accounts.models import Membership, Project, Role, User
from apps.accounts.services import issue_token
from apps.evaluations.gate_policies import create_gate_policy
from apps.evaluations.models import Evaluation, EvaluationItem, EvaluationState
from apps.evaluations.services import policy_arm, start_evaluation
from apps.policies.models import BaseModel, Policy, PolicyKind
from apps.policies.services import set_channel
from apps.promotions.services import compute_gate, open_gate
from apps.reviews.models import Label, ReviewItem
from apps.runs.models import Batch, Checkpoint, Group, Run, RunEvent
from apps.runs.reproductions.models import Reproduction
from apps.runs.services import submit_run
from apps.runs.services.group_reports import _episode
from apps.tasks.measurements.models import MeasuredCandidate, MeasuredTask, VerifierMeasurement
from apps.tasks.models import Suite, Task
from apps.tasks.reports import services as report_services
from apps.tasks.services import apply_checks, import_suite, release_task
from apps.webhooks.models import DeliveryState
from apps.webhooks.services import create_webhook, send_test
from gpu_workers.contracts.enums import Split
from gpu_workers.contracts.groups import (
    EpisodeRecord,
    EpisodeTokens,
    GroupTranscript,
    SandboxRecord,
    ToolCallRecord,
    TurnRecord,
    encode_group,
)
from gpu_workers.contracts.messages import TaskCheck
from gpu_workers.contracts.tasks import Message
from ratchet.store import get_store
from tests.support.evaluations import committed
from tests.support.worlds import run_spec
from tests.unit.apps.tasks.conftest import make_definition, make_task

CANARY = "canary-9f3c71"  # with the project's slug, in everything that only heldout:read opens
OPEN = "open-text"


@dataclass
class Plant:
    """One project. `ids` names an object of every kind; `users` one person of every role, none of whom made it."""

    project: Project
    users: dict[str, User]
    author: User
    ids: dict[str, Any] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def slug(self) -> str:
        return self.project.slug

    @property
    def canary(self) -> str:
        return f"{CANARY}-{self.slug}"


def plant(slug: str) -> Plant:
    project = Project.objects.create(slug=slug, title=f"Project {slug}")
    users = {role: _person(project, f"{slug}-{role}", role) for role in Role.values}
    author = _person(project, f"{slug}-author", Role.ENGINEER)
    made = Plant(project, users, author)
    with mock.patch("apps.tasks.checks.app.send_task"):
        suite = _suite(made)
    _policies(made)
    _run(made, suite)
    _evaluations(made, suite)
    _gate(made, suite)
    _reports(made, suite)
    _measurement(made, suite)
    _outside(made)
    made.ids["token"] = issue_token(user=author, name="laptop", by=author).token.pk
    made.ids["member"] = author.username
    return made


def _person(project: Project, name: str, role: str) -> User:
    user = User.objects.create_user(name, password="a very good password")
    Membership.objects.create(user=user, project=project, role=role)
    return user


def _content(made: Plant, split: str) -> str:
    return made.canary if split == Split.HELDOUT else OPEN


def _suite(made: Plant) -> Suite:
    rows = [("t1", Split.TRAIN), ("t2", Split.TRAIN), ("d1", Split.DEV), ("r1", Split.REGRESSION)]
    rows += [(f"h{number}", Split.HELDOUT) for number in range(6)]
    tasks = [
        make_task(key, f"{_content(made, split)}: {made.slug} {key} 1 + 2?", split, cluster=key,
                  reference=[Message(role="assistant", content=f"3 {_content(made, split)} {key}")])
        for key, split in rows
    ]  # fmt: skip
    suite = import_suite(project=made.project, definition=make_definition(), tasks=tasks, by=made.author)
    bad = {"h4", "h5", "t2"}
    checks = [
        TaskCheck(task_id=str(task.pk), ok=task.key not in bad, reason_code="WRONG_ANSWER" if task.key in bad else "OK",
                  message=f"the reference says {_content(made, task.split)}" if task.key in bad else "")
        for task in suite.tasks.all()
    ]  # fmt: skip
    apply_checks(suite_id=suite.pk, checks=checks)
    by_key = {task.key: task for task in suite.tasks.all()}
    release_task(task=by_key["h5"], by=made.author, reason="the check was wrong")
    suite.refresh_from_db()
    made.ids |= {
        "suite": suite.pk, "task": by_key["t1"].pk, "heldout_task": by_key["h0"].pk,
        "quarantined": by_key["t2"].pk, "heldout_quarantined": by_key["h4"].pk, "released": by_key["h5"].pk,
    }  # fmt: skip
    return suite


def _policies(made: Plant) -> None:
    base, _ = BaseModel.objects.get_or_create(slug="tiny", defaults={"title": "Tiny"})
    values: dict[str, Any] = {"project": made.project, "base_model": base, "created_by": made.author}
    digest = made.slug.encode().hex().ljust(64, "0")[:64]
    for slug, kind, adapter in (("base", PolicyKind.PROMPT, ""), ("candidate", PolicyKind.REINFORCED, "policies/c")):
        made.ids[slug] = Policy.objects.create(
            slug=slug, title=slug, kind=kind, adapter=adapter, adapter_sha256=digest if adapter else "", **values
        ).pk
    channel = set_channel(
        project=made.project, name="production", policy=Policy.objects.get(pk=made.ids["base"]), by=None
    )
    made.ids["channel"] = channel


_numbers = count(1)


def _store_group(made: Plant, task: Task, **fields: Any) -> Group:
    """A closed group of one episode whose transcript, tokens and verdict hold the content of its task's split."""
    text = f"{_content(made, task.split)} said by the policy"
    record = EpisodeRecord(
        index=0, seed=1, stop_reason="answered", verdict="fail", reward=0.0, reason_code="WRONG_ANSWER",
        answer=text, message=text, evidence={"expected": text}, num_turns=2, total_seconds=1.0,
        token_texts=[text, text], sandbox=SandboxRecord(log=text),
        turns=[
            TurnRecord(role="user", text=text, token_stop=1),
            TurnRecord(role="assistant", text=text, token_start=1, token_stop=2, finish_reason="stop",
                       tool_call=ToolCallRecord(name="calc", arguments={"expression": text}, result=text)),
        ],
    )  # fmt: skip
    tokens = EpisodeTokens(
        tokens=np.array([1, next(_numbers)]), mask=np.array([0, 1]), logprobs=np.array([0.0, -0.5]),
        versions=np.array([-1, 0]), reward=0.0,
    )  # fmt: skip
    group = Group.objects.create(
        project=made.project, task=task, size=1, state="closed", uri=get_store().put(encode_group([tokens], {})),
        **{"outcome": "scored", "purpose": "evaluation", **fields},
    )  # fmt: skip
    transcript = GroupTranscript(str(group.pk), task.key, task.task_hash, [record])
    group.transcript = get_store().put(transcript.encode())
    group.save(update_fields=["transcript"])
    episode = _episode(group, record)
    episode.save()
    return group


def _run(made: Plant, suite: Suite) -> None:
    with mock.patch("apps.runs.messaging.request_advance"), committed():
        run = submit_run(project=made.project, spec=run_spec(policy="base"), by=made.author)
    Run.objects.filter(pk=run.pk).update(state="running", started_at=timezone.now())
    batch = Batch.objects.create(run=run, attempt=1, index=0, state="trained", trained_at=timezone.now())
    task = suite.tasks.get(key="t1")
    group = _store_group(
        made, task, run=run, number=1, purpose="train", outcome="trained", batch=batch, age=0, run_attempt=1
    )
    Checkpoint.objects.create(run=run, attempt=1, version=1, uri="runs/x", adapter="runs/x", sha256="a" * 64)
    RunEvent.objects.create(run=run, code="note", message="something happened", level="info")
    episode = group.episodes.get()
    reproduction = Reproduction.objects.create(episode=episode, requested_by=made.author)
    made.ids |= {"run": run.pk, "group": group.pk, "episode": episode.pk, "reproduction": reproduction.pk}


def _finish(made: Plant, evaluation: Evaluation) -> list[Group]:
    groups = []
    items = list(evaluation.items.select_related("task"))
    for item in items:
        item.group = _store_group(made, item.task)
        groups.append(item.group)
    EvaluationItem.objects.bulk_update(items, ["group"])
    Evaluation.objects.filter(pk=evaluation.pk).update(state=EvaluationState.FINISHED, finished_at=timezone.now())
    evaluation.refresh_from_db()
    return groups


def _evaluations(made: Plant, suite: Suite) -> None:
    arms = [policy_arm(Policy.objects.get(pk=made.ids["base"]))]
    common: dict[str, Any] = {"project": made.project, "suite": suite, "arms": arms, "by": made.author}
    dev = start_evaluation(split="dev", purpose="baseline", **common)
    _finish(made, dev)
    heldout = start_evaluation(split="heldout", purpose="baseline", **common)
    groups = _finish(made, heldout)
    episode = groups[0].episodes.get()
    reproduction = Reproduction.objects.create(
        episode=episode, state="finished", outcome="same", finished_at=timezone.now(),
        message=made.canary, verdict="fail", evidence={"expected": made.canary},
        calls=[{"name": "calc", "arguments": {"x": made.canary}, "same": True, "stored": made.canary,
                "stored_digest": "a", "reproduced": made.canary, "digest": "a"}],
    )  # fmt: skip
    item = ReviewItem.objects.create(
        project=made.project, episode=groups[1].episodes.get(), stratum="evaluation|heldout|prompt|fail",
        inclusion_probability=1, why="random slice", position=0.1,
    )  # fmt: skip
    labelled = ReviewItem.objects.create(
        project=made.project, episode=groups[2].episodes.get(), stratum="evaluation|heldout|prompt|fail",
        inclusion_probability=1, why="random slice", position=0.2, state="labelled",
    )  # fmt: skip
    other = _person(made.project, f"{made.slug}-second", Role.REVIEWER)
    made.ids["label"] = Label.objects.create(
        item=labelled, reviewer=other, verdict="pass", comment=f"it says {made.canary}"
    ).pk
    with mock.patch("apps.evaluations.messaging.request_advance"):
        started = start_evaluation(split="train", purpose="baseline", **common)
    made.ids |= {
        "dev_evaluation": dev.pk, "evaluation": heldout.pk, "open_evaluation": started.pk,
        "heldout_group": groups[0].pk, "heldout_episode": episode.pk, "heldout_reproduction": reproduction.pk,
        "item": item.pk,
    }  # fmt: skip


def _gate(made: Plant, suite: Suite) -> None:
    policy = create_gate_policy(project=made.project, slug="default", by=None)
    candidate = Policy.objects.get(pk=made.ids["candidate"])
    gate = open_gate(
        project=made.project, channel=made.ids["channel"], candidate=candidate, gate_policy=policy, suite=suite,
        by=made.author,
    )  # fmt: skip
    _finish(made, gate.evaluation)
    arm = gate.evaluation.arms.get(policy=candidate)
    for item in arm.items.select_related("group"):  # the candidate solves what the incumbent does not
        item.group.episodes.update(success=True, verdict="pass", reward=1.0, reason_code="OK")
    made.ids |= {"gate_policy": policy.pk, "gate": compute_gate(gate).pk}


def _reports(made: Plant, suite: Suite) -> None:
    """The real report, without probes, computed here instead of by a worker; the one that the import asked for waits
    for workers that this world has not."""
    suite.reports.all().delete()
    done: list[Any] = []
    compute, finish = report_services.compute_report, report_services.finish_report
    with (
        mock.patch("apps.tasks.reports.messaging.request_compute", lambda pk: done.append(compute(pk))),
        mock.patch("apps.tasks.reports.messaging.request_finish", lambda pk: done.append(finish(pk))),
        committed(),
    ):
        report = report_services.request_report(suite=suite, by=made.author, options={"probe": False})
    made.ids["report"], made.ids["finding"] = report.pk, "leaks"


def _outside(made: Plant) -> None:
    """An invitation, and a webhook with a delivery that was given up."""
    sent = invite(project=made.project, email="guest@example.org", role=Role.VIEWER, by=made.users[Role.ADMIN])
    hook = create_webhook(project=made.project, url="https://example.org/hook", events=["*"], by=made.author)
    delivery = send_test(webhook=hook, by=made.author)
    delivery.state, delivery.next_attempt_at, delivery.finished_at = DeliveryState.FAILED, None, timezone.now()
    delivery.save()
    made.ids |= {
        "invitation": sent.invitation.pk, "secret": sent.secret, "webhook": hook.pk, "delivery": delivery.pk
    }  # fmt: skip


def _measurement(made: Plant, suite: Suite) -> None:
    now = timezone.now()
    measurement = VerifierMeasurement.objects.create(
        suite=suite, method="mutants", verifier_kind="number", state="ready", finished_at=now, num_tasks=2,
        created_by=made.author, options={"per_task": 3, "max_tasks": 0, "num_inputs": 150},
    )  # fmt: skip
    for key in ("t1", "h0"):
        task = suite.tasks.get(key=key)
        text = _content(made, task.split)
        measured = MeasuredTask.objects.create(measurement=measurement, task=task, item={}, measured_at=now)
        candidate = MeasuredCandidate.objects.create(
            measured=measured, number=1, origin="swap", text=text, verdict="pass", truth="wrong", message=text,
            difference="value", input=text, expected=text, got=text, num_inputs=1, num_different=1,
        )  # fmt: skip
        made.ids["candidate_open" if key == "t1" else "candidate_heldout"] = candidate.pk
    made.ids["measurement"] = measurement.pk
