"""A rollout worker that plays stored episodes again in the test's own process, with the real sandbox."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import msgspec

from apps.runs.models import Episode, Group, Reproduction
from apps.runs.services.reports import ingest_report
from apps.tasks.models import SplitName, Task
from gpu_workers import jobs, replay_jobs
from gpu_workers.contracts.groups import GroupTranscript, jsonable
from gpu_workers.contracts.messages import Report
from gpu_workers.contracts.replays import EpisodeReproduced, ReproduceJob
from gpu_workers.contracts.tasks import TaskBundle
from gpu_workers.rollout.playback import play
from ratchet.store import get_store
from tests.support.evaluations import committed
from tests.support.replays import Turns
from tests.support.worlds import World


@dataclass
class Plane:
    """A world whose rollout worker answers in this process, with the real sandbox."""

    world: World
    sent: deque[ReproduceJob]
    reports: list[Report]

    def store_episode(self, bundle: TaskBundle, *texts: str, split: str = SplitName.TRAIN, **changes: Any) -> Episode:
        """Play the turns once and store what a group of one would leave behind."""
        store = get_store()
        key = store.put(msgspec.json.encode(bundle))
        digest = key.rsplit("/", 1)[-1]
        task = Task.objects.filter(suite=self.world.suite, split=split).first()
        Task.objects.filter(pk=task.pk).update(bundle=key, task_hash=digest)
        record = asyncio.run(play(bundle, Turns(bundle, *texts), jobs.group_services()))
        transcript = store.put(GroupTranscript("g", bundle.key, digest, [record]).encode())
        group = Group.objects.create(
            project=self.world.project, task=task, purpose="train", state="closed", outcome="scored", size=1,
            transcript=transcript,
        )  # fmt: skip
        values = {
            "verdict": record.verdict, "reward": record.reward, "success": record.success,
            "reason_code": record.reason_code, "stop_reason": record.stop_reason, "evidence": record.evidence,
        }  # fmt: skip
        return Episode.objects.create(group=group, index=0, seed=0, **{**values, **changes})

    def ask(self, client, episode: Episode):
        with committed():
            return client.post(f"/api/v1/episodes/{episode.pk}/reproduce/")

    def work(self) -> None:
        """Let the worker answer everything that was sent."""
        while self.sent:
            replay_jobs.reproduce_episode(jsonable(self.sent.popleft()))
            with committed():
                assert ingest_report(jsonable(self.reports[-1])) == "stored"

    def answer(self, row: Reproduction, **body: Any) -> str:
        report = EpisodeReproduced(job_id=str(row.pk), **body)
        with committed():
            return ingest_report(jsonable(Report(report_id=str(uuid4()), kind="reproduced", body=jsonable(report))))
