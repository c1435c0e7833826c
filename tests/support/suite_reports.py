"""A small suite with planted faults, its episodes, and workers that compute its report in the test's own process."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from apps.accounts.models import User
from apps.runs.models import Episode, Group
from apps.runs.services.reports import ingest_report
from apps.tasks import jobs as task_jobs
from apps.tasks.models import Suite
from apps.tasks.reports.models import SuiteReport
from apps.tasks.reports.selectors import newest_report
from apps.tasks.reports.services import request_report
from gpu_workers import replay_jobs
from gpu_workers.contracts.enums import Split, VerifierKind
from gpu_workers.contracts.groups import EpisodeRecord, GroupTranscript, TurnRecord, jsonable
from gpu_workers.contracts.messages import Report
from gpu_workers.contracts.tasks import Message, VerifierSpec
from ratchet.store import get_store
from tests.support.evaluations import committed
from tests.unit.apps.tasks.conftest import make_task

LEAK = "Please work out with care how much seven crates of nine lemons and two spare lemons come to."


@dataclass
class Plane:
    """Control and verify workers that answer in this process."""

    suite: Suite
    computes: deque = field(default_factory=deque)
    finishes: deque = field(default_factory=deque)
    probes: deque = field(default_factory=deque)
    reports: list[Report] = field(default_factory=list)

    def work(self) -> None:
        while self.computes or self.probes or self.finishes:
            with committed():
                if self.computes:
                    task_jobs.compute_report(str(self.computes.popleft()))
                elif self.probes:
                    replay_jobs.probe_tasks(jsonable(self.probes.popleft()))
                    assert ingest_report(jsonable(self.reports[-1])) == "stored"
                else:
                    task_jobs.finish_report(str(self.finishes.popleft()))

    def request(self, by: User | None = None, **options: Any) -> SuiteReport:
        with committed():
            return request_report(suite=self.suite, by=by, options=options)

    def compute(self, **options: Any) -> SuiteReport:
        self.request(**options)
        self.work()
        report = newest_report(self.suite)
        assert report is not None
        return report


def suite_tasks() -> list[Any]:
    lax = VerifierSpec(kind=VerifierKind.PROGRAM, program="def verify(episode):\n    return {'score': 1}\n")
    return [
        make_task("t1", "1 + 2?"),
        make_task("t2", LEAK, reference=[Message(role="assistant", content="65")],
                  verifier=VerifierSpec(kind=VerifierKind.NUMBER, expected=65)),
        make_task("t3", "Is there life on Mars?", verifier=lax, reference=[Message(role="assistant", content="no")]),
        make_task("h1", "secret 3 + 0?", Split.HELDOUT, cluster="zero"),
        make_task("h2", f"{LEAK} (secret)", Split.HELDOUT, reference=[Message(role="assistant", content="65")],
                  verifier=VerifierSpec(kind=VerifierKind.NUMBER, expected=65)),
        make_task("h3", "secret nothing to do", Split.HELDOUT, verifier=lax, cluster="zero"),
    ]  # fmt: skip


def _record(index: int, answer: str, right: bool) -> EpisodeRecord:
    return EpisodeRecord(
        index=index, seed=index, stop_reason="answered", answer=answer, verdict="pass" if right else "fail",
        reward=float(right), success=right, reason_code="OK" if right else "WRONG_ANSWER",
        turns=[TurnRecord(role="user", text="?"), TurnRecord(role="assistant", text=answer, finish_reason="stop")],
    )  # fmt: skip


def store_attempts(suite: Suite, key: str, *answers: str) -> None:
    """Episodes of one task that a training run left behind, each with its transcript; 3 was right."""
    task = suite.tasks.get(key=key)
    records = [_record(index, answer, answer == "3") for index, answer in enumerate(answers)]
    transcript = get_store().put(GroupTranscript("g", key, task.bundle.rsplit("/", 1)[-1], records).encode())
    group = Group.objects.create(
        project=suite.project, task=task, purpose="train", state="closed", outcome="scored",
        size=len(answers), transcript=transcript,
    )  # fmt: skip
    Episode.objects.bulk_create(
        Episode(
            group=group, index=r.index, seed=r.seed, verdict=r.verdict, success=r.success, reward=r.reward,
            reason_code=r.reason_code, stop_reason=r.stop_reason, answer=r.answer,
        )
        for r in records
    )  # fmt: skip
