"""Scripted workers of evaluations: engines that confirm or refuse, rollouts whose outcomes a test decides."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.test import TestCase

from apps.accounts.models import Project, User
from apps.evaluations import messaging as evaluation_messaging
from apps.evaluations import scheduler, selection
from apps.evaluations.finishing import end_evaluation
from apps.evaluations.models import Evaluation, EvaluationState
from apps.evaluations.states import OPEN_STATES
from apps.policies.models import BaseModel, Policy, PolicyKind
from apps.reviews import messaging as review_messaging
from apps.runs import messaging as run_messaging
from apps.runs.models import Episode, Group
from apps.runs.services import group_reports, reports
from apps.tasks.models import Suite, SuiteState, Task, TaskState
from gpu_workers.contracts.enums import ReasonCode, StopReason, Verdict
from gpu_workers.contracts.groups import EpisodeRecord, GroupTranscript, ToolCallRecord, TurnRecord, jsonable
from gpu_workers.contracts.messages import FleetJob, GroupReport, PolicyInstalled, Report, RolloutJob, Transfer
from ratchet.store import get_store

Outcome = Callable[[Task, str, int], dict[str, Any]]  # task, adapter, episode's index -> fields of the record


@contextmanager
def committed() -> Iterator[None]:
    """Run what the block registered on commit, as a real commit would."""
    with TestCase.captureOnCommitCallbacks(execute=True):
        yield


def passing(task: Task, adapter: str, index: int) -> dict[str, Any]:
    return {"success": True}


class Workers:
    """Messages to workers are kept; `work` answers them until nothing is left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rollouts: deque[RolloutJob] = deque()
        self.fleet: deque[FleetJob] = deque()
        self.choices: deque[UUID] = deque()
        self.stored: list[UUID] = []  # groups of which review items are to be drawn
        self.adapters: set[str] = set()
        self.weights = "default"  # of the engines whose weights are replaced
        self.installs: list[FleetJob] = []  # whole weights that were installed, in order
        self.sent: list[RolloutJob] = []
        self.most_in_flight = 0
        self.refusal = ""  # the engines' answer while they are down
        self.failures: Callable[[Task, str], str] = lambda task, adapter: ""
        monkeypatch.setattr(run_messaging, "send_rollout", self._take_rollout)
        monkeypatch.setattr(run_messaging, "send_fleet", self.fleet.append)
        monkeypatch.setattr(run_messaging, "request_advance", lambda *_, **__: None)
        monkeypatch.setattr(review_messaging, "request_sampling", self.stored.append)
        monkeypatch.setattr(evaluation_messaging, "request_advance", lambda *_: None)
        monkeypatch.setattr(evaluation_messaging, "request_choice", self.choices.append)

    def _take_rollout(self, job: RolloutJob) -> None:
        self.rollouts.append(job)
        self.sent.append(job)
        self.most_in_flight = max(self.most_in_flight, len(self.rollouts))

    def work(self, outcome: Outcome = passing, max_rounds: int = 500) -> None:
        """Advance every open evaluation and answer every message, round by round."""
        for _ in range(max_rounds):
            with committed():
                self.advance()
            if not (self.rollouts or self.fleet or self.choices):
                return
            self.answer_fleet()
            while self.rollouts:
                self.answer_rollout(self.rollouts.popleft(), outcome)
            while self.choices:
                run_id = self.choices.popleft()
                with committed():
                    selection.choose_checkpoint(run_id)
        raise AssertionError("the evaluation did not come to rest")

    def advance(self) -> None:
        for evaluation_id in Evaluation.objects.filter(state__in=OPEN_STATES).values_list("id", flat=True):
            scheduler.advance_evaluation(evaluation_id)

    def answer_fleet(self) -> None:
        while self.fleet:
            job = self.fleet.popleft()
            if not self.refusal and job.transfer is not Transfer.ADAPTER:
                self.weights = job.install[0].name
                self.installs.append(job)
            elif not self.refusal:
                self.adapters |= {item.name for item in job.install}
                self.adapters -= set(job.retire)
            body = PolicyInstalled(job_id=job.job_id, ok=not self.refusal, message=self.refusal, engines=["engine"])
            self._report("installed", body)

    def answer_rollout(self, job: RolloutJob, outcome: Outcome) -> None:
        group = Group.objects.select_related("task").get(pk=job.group_id)
        name = job.policy.weights or job.policy.adapter
        error = self.failures(group.task, name)
        if not error and job.policy.weights and job.policy.weights != self.weights:
            error = f"the engines have weights {self.weights}, not {job.policy.weights}"
        if not error and job.policy.adapter and job.policy.adapter not in self.adapters:
            error = f"adapter {job.policy.adapter} is not loaded"
        body = GroupReport(group_id=job.group_id, attempt=job.attempt, error=error, boundary="engine" if error else "")
        if not error:
            body.episodes = [_episode(index, outcome(group.task, name, index)) for index in range(job.group_size)]
            transcript = GroupTranscript(job.group_id, group.task.key, group.task.task_hash, _with_turns(body.episodes))
            body.transcript = get_store().put(transcript.encode())
            body.uri = get_store().put(job.group_id.encode())
        self._report("group", body)

    def _report(self, kind: str, body: Any) -> None:
        with committed():
            reports.ingest_report(jsonable(Report(report_id=str(uuid4()), kind=kind, body=jsonable(body))))


def _episode(index: int, fields: dict[str, Any]) -> EpisodeRecord:
    success = bool(fields.get("success"))
    values: dict[str, Any] = {
        "verdict": Verdict.PASS if success else Verdict.FAIL,
        "reward": float(success),
        "reason_code": ReasonCode.OK if success else ReasonCode.WRONG_ANSWER,
        "answer": "42" if success else "41",
        "num_turns": 2,
        "num_total_tokens": 100,
        "num_sampled_tokens": 20,
        "total_seconds": 1.0,
        "engine_seconds": 0.8,
    }
    return EpisodeRecord(index=index, seed=index, stop_reason=StopReason.ANSWERED, **{**values, **fields})


def _with_turns(episodes: list[EpisodeRecord]) -> list[EpisodeRecord]:
    call = ToolCallRecord(name="calc", arguments={"expression": "6*7"}, result="42", duration_seconds=0.01)
    return [
        EpisodeRecord(
            index=episode.index,
            seed=episode.seed,
            stop_reason=episode.stop_reason,
            verdict=episode.verdict,
            reward=episode.reward,
            success=episode.success,
            reason_code=episode.reason_code,
            message="the verifier's words",
            answer=episode.answer,
            turns=[
                TurnRecord(role="user", text="A worked example"),
                TurnRecord(role="user", text="What is six times seven?"),
                TurnRecord(role="assistant", text="calc(expression='6*7')", finish_reason="stop"),
                TurnRecord(role="tool", text="42", tool_call=call),
                TurnRecord(role="assistant", text=episode.answer, finish_reason="stop"),
            ],
        )
        for episode in episodes
    ]


def fill(evaluation: Evaluation, outcome: Outcome) -> None:
    """Finish an evaluation at once with stored groups and episodes, as if the workers had answered."""
    groups, episodes = [], []
    items = list(evaluation.items.select_related("task", "arm__policy", "arm__checkpoint__run"))
    for item in items:
        item.group = Group(
            project=evaluation.project, task=item.task, purpose="evaluation", state="closed", outcome="scored",
            size=evaluation.samples, policy_adapter=item.arm.engine_name, uri="objects/00/0",
        )  # fmt: skip
        groups.append(item.group)
        for index in range(evaluation.samples):
            fields = outcome(item.task, item.arm.engine_name, index)
            if fields is not None:
                episodes.append(group_reports._episode(item.group, _episode(index, fields)))
    Group.objects.bulk_create(groups)
    Episode.objects.bulk_create(episodes)
    type(items[0]).objects.bulk_update(items, ["group"])
    evaluation.refresh_from_db()
    evaluation.state = EvaluationState.RUNNING
    with committed():
        end_evaluation(evaluation, EvaluationState.FINISHED, "done")


def make_suite(project: Project, *, slug: str = "sums", per_cluster: int = 2, **splits: int) -> Suite:
    """A ready suite with so many tasks a split, in clusters of two."""
    suite = Suite.objects.create(
        project=project,
        slug=slug,
        title="Sums",
        distribution="sums",
        failure_modes=[{"code": "WRONG_ANSWER", "meaning": "another number"}],
        content_hash="0" * 64,
        state=SuiteState.READY,
    )
    number = 0
    for split, count in splits.items():
        for index in range(count):
            Task.objects.create(
                suite=suite,
                key=f"{split}-{index:03}",
                split=split,
                position=number,
                bundle=f"objects/00/{number:064}",
                task_hash=f"{number:064}",
                prompt_hash=f"{number:064}",
                prompt_preview="What is six times seven?",
                cluster=f"{split}-c{index // per_cluster}",
                state=TaskState.READY,
            )
            number += 1
    return suite


def make_policy(project: Project, slug: str, *, by: User | None = None, adapter: bool = True, **fields: Any) -> Policy:
    base, _ = BaseModel.objects.get_or_create(slug="tiny", defaults={"title": "Tiny"})
    digest = f"{slug.encode().hex():0<64}"[:64]
    values: dict[str, Any] = {"kind": PolicyKind.REINFORCED if adapter else PolicyKind.PROMPT, "title": slug}
    if adapter:
        values |= {"adapter": f"policies/{slug}", "adapter_sha256": digest, "train_cpu_seconds": 100.0}
    return Policy.objects.create(project=project, slug=slug, base_model=base, created_by=by, **{**values, **fields})
