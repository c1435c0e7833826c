"""The scripted trainer: takes batches in order, makes checkpoints durable, reports, crashes on demand."""

import hashlib
import random
from datetime import datetime
from typing import Any

import msgspec

from gpu_workers.contracts.checkpoints import ADAPTER, MODEL, version_key
from gpu_workers.contracts.messages import BatchMessage, StepReport, TrainerFailed, TrainerFinished, TrainerStarted
from tests.support.scripted import Chaos, ScriptedTrainer, write_checkpoint


class TrainerPart:
    """The trainer's half of the scripted plane, which holds the messages."""

    random: random.Random
    chaos: Chaos
    now: datetime
    events: int
    trains: Any
    queues: Any
    trainers: list[ScriptedTrainer]
    checkpoints: dict[str, list[str]]
    send: Any
    heartbeat: Any
    machine: str = ""  # what the bytes of a version depend on beside its batches
    damaged: set[str]  # checkpoints that no trainer can read
    metrics: dict[str, float]  # of every step, beside the usual ones

    def _start_trainer(self) -> None:
        job = self.trains.popleft()
        if job.resume_from in self.damaged:
            failed = TrainerFailed(code="damaged_checkpoint", message=f"{job.resume_from} is damaged", retryable=True)
            self._say(ScriptedTrainer(job), "trainer_failed", failed, "failed")
            return
        batch_ids = list(self.checkpoints.get(job.resume_from, []))
        trainer = ScriptedTrainer(job, version=len(batch_ids), batch_ids=batch_ids, started=True)
        self.trainers.append(trainer)
        self.heartbeat()
        if self._happens(self.chaos.start_crash):
            trainer.dead = True
            self._say(trainer, "trainer_failed", TrainerFailed(code="killed", message="signal 9"), "failed")
            return
        total = 3 if job.spec["algorithm"]["kind"] == "sft" else 0
        if total:
            trainer.version = int(job.resume_from.rpartition("/v")[2] or 0)
            trainer.batch_ids = []
        self._say(trainer, "trainer_started", TrainerStarted(
            resumed_version=trainer.version, batch_ids=batch_ids, total_steps=total, host="scripted"
        ), "started")  # fmt: skip

    def _say(self, trainer: ScriptedTrainer, kind: str, body: msgspec.Struct, name: str) -> None:
        job = trainer.job
        self.send(
            kind,
            body,
            run_id=job.run_id,
            attempt=job.attempt,
            token=job.token,
            report_id=f"{job.run_id}.a{job.attempt}.{name}",
        )

    def _is_sft(self, trainer: ScriptedTrainer) -> bool:
        return bool(trainer.job.spec["algorithm"]["kind"] == "sft")

    def _next_batch(self, trainer: ScriptedTrainer) -> BatchMessage | None:
        if trainer.dead or trainer.finished:
            return None
        queue = self.queues[f"batches.{trainer.job.run_id}.{trainer.job.attempt}"]
        for payload in list(queue):
            if "stop" in payload:
                trainer.dead = True
                return None
            message = msgspec.convert(payload, BatchMessage)
            if message.index < trainer.version:
                queue.remove(payload)
            elif message.index == trainer.version:
                return message
        return None

    def _can_finish(self, trainer: ScriptedTrainer) -> bool:
        if trainer.dead or trainer.finished:
            return False
        return self._is_sft(trainer) or trainer.version >= trainer.job.spec["steps"]

    def _train(self) -> None:
        able = [t for t in self.trainers if self._next_batch(t) is not None or self._can_finish(t)]
        trainer = self.random.choice(able)
        message = self._next_batch(trainer)
        if self._is_sft(trainer) and trainer.version < 3:
            self._finish_step(trainer, "")
        elif message is not None:
            assert message.batch_id not in trainer.batch_ids, "a batch was trained twice"
            trainer.batch_ids.append(message.batch_id)
            self._finish_step(trainer, message.batch_id)
        else:
            trainer.finished = True
            self._say(
                trainer, "trainer_finished", TrainerFinished(version=trainer.version, cpu_seconds=9.0), "finished"
            )

    def _finish_step(self, trainer: ScriptedTrainer, batch_id: str) -> None:
        trainer.version += 1
        job, version = trainer.job, trainer.version
        key = version_key(job.run_id, job.attempt, version)
        publishes = bool(batch_id) or version == 3
        # As exact as the real one: equal batches from equal weights give equal bytes, on the machine it is used to.
        digest = hashlib.sha256(" ".join([self.machine, *trainer.batch_ids]).encode()).hexdigest()
        whole = job.spec["trainer"]["update"] == "full"
        part = MODEL if whole else ADAPTER
        if publishes:
            write_checkpoint(key, job.attempt, version, digest, whole=whole)
            self.checkpoints[key] = list(trainer.batch_ids)
        if self._crashes(trainer):
            return
        body = StepReport(
            version=version, batch_id=batch_id, batch_ids=list(trainer.batch_ids), checkpoint=key if publishes else "",
            adapter=f"{key}/{part}" if publishes else "", sha256=digest if publishes else "", num_bytes=1000,
            metrics={"train/reward_mean": 0.5, "train/loss": 0.1, "train/grad_norm": 1.0, "train/cpu_seconds": 2.0}
            | self.metrics,
            started_at=self.now.timestamp() - 2, finished_at=self.now.timestamp(), wait_seconds=0.5, train_seconds=1.5,
        )  # fmt: skip
        self._say(trainer, "step", body, f"v{version}")
        self._crashes(trainer)

    def _crashes(self, trainer: ScriptedTrainer) -> bool:
        if self._happens(self.chaos.silent_crash):
            trainer.dead = not self._happens(self.chaos.zombie)
            if trainer.dead:
                return True
            # A zombie goes on, but its heartbeats no longer arrive.
            trainer.started = False
        elif self._happens(self.chaos.trainer_crash):
            trainer.dead = True
            self._say(
                trainer, "trainer_failed", TrainerFailed(code="killed", message="signal 9"), f"failed{self.events}"
            )
            return True
        return False

    def _happens(self, probability: float) -> bool:
        return self.random.random() < probability
