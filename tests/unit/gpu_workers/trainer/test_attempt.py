"""A whole attempt: reports, checkpoints, resuming after a crash at any point, stops and refusals."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from gpu_workers.contracts.messages import (
    BatchGroup,
    BatchMessage,
    Heartbeat,
    Report,
    StepReport,
    StopMessage,
    TrainerStarted,
    TrainJob,
)
from gpu_workers.contracts.runspec import RunSpec, TrainerSpec, Update, stored_spec_hash
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.contracts.transfers import Transfer
from gpu_workers.trainer import checkpoints, publishing
from gpu_workers.trainer.attempt import AttemptError, TrainerAttempt, Workplace
from gpu_workers.trainer.consumer import Delivery
from gpu_workers.trainer.main import describe_failure
from tests.unit.gpu_workers.trainer.synthetic import make_groups


class Recorder:
    def __init__(self, crash_at: str = "") -> None:
        self.reports: list[Report] = []
        self.crash_at = crash_at

    def send(self, report: Report) -> None:
        if self.crash_at and report.report_id.endswith(self.crash_at):
            raise KeyboardInterrupt
        self.reports.append(report)

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        raise AssertionError("heartbeats have a thread of their own")

    def of(self, kind: str) -> list[dict]:
        return [report.body for report in self.reports if report.kind == kind]


class Queue:
    """A BatchSource that hands out batches by version, then a stop, and remembers acknowledgements."""

    def __init__(self, store: ObjectStore, count: int, *, attempt: int = 1, cancelled: bool = False) -> None:
        self.acked: list[str] = []
        self.cancelled = cancelled
        self.messages = {}
        for index in range(count):
            groups = [BatchGroup(group_id=g.group_id, uri=store.put(g.file), age=g.age) for g in make_groups(index)]
            self.messages[index] = BatchMessage(
                run_id="r", attempt=attempt, batch_id=f"b{index}", index=index, groups=groups
            )

    def next(self, version: int) -> Delivery:
        message = self.messages.get(version, StopMessage(cancelled=self.cancelled))
        name = getattr(message, "batch_id", "stop")
        return Delivery(message, lambda: self.acked.append(name))

    def close(self) -> None:
        return None


@pytest.fixture
def place(home: Path, tmp_path: Path) -> Workplace:
    return Workplace(ObjectStore(f"file://{tmp_path}/objects"), home / "models", tmp_path / "cache")


def job(spec: RunSpec, **changes: object) -> TrainJob:
    fields: dict[str, object] = {
        "run_id": "r", "attempt": 1, "token": 9, "spec": msgspec.to_builtins(spec), "base_model": "tiny",
    }  # fmt: skip
    return TrainJob(**(fields | changes))


def adapter_of(place: Workplace, body: dict) -> dict[str, torch.Tensor]:
    return load_file(Path(place.store.path(body["adapter"])) / "adapter_model.safetensors")


def test_batches_become_versions(spec: RunSpec, place: Workplace):
    recorder, queue = Recorder(), Queue(place.store, 4)
    TrainerAttempt(job(spec), place, recorder).run(queue)
    assert [r.kind for r in recorder.reports] == ["trainer_started", *["step"] * 4, "trainer_finished"]
    assert queue.acked == ["b0", "b1", "b2", "b3"]
    steps = [msgspec.convert(body, StepReport) for body in recorder.of("step")]
    assert [s.version for s in steps] == [1, 2, 3, 4]
    assert steps[2].batch_ids == ["b0", "b1", "b2"]
    assert all(r.token == 9 and r.run_attempt == 1 for r in recorder.reports)
    for step in steps:
        folder = Path(place.store.path(step.checkpoint))
        manifest = checkpoints.check_folder(folder)
        assert manifest.identity.version == step.version
        assert manifest.files["adapter/adapter_model.safetensors"] == step.sha256
        described = json.loads((folder / "adapter" / "manifest.json").read_text())
        assert described["name"] == f"run-r.a1@v{step.version}"
        assert described["sha256"] == step.sha256
        assert step.metrics["train/reward_mean"] == 0.5
    assert recorder.of("trainer_finished")[0]["peak_memory_bytes"] > 0


@pytest.mark.parametrize("crash_at", [".started", ".v1", ".v3", ".v4", ".finished"])
def test_a_crash_anywhere_then_a_new_attempt_gives_the_same_weights(spec: RunSpec, place: Workplace, crash_at: str):
    undisturbed = Recorder()
    TrainerAttempt(job(spec, run_id="r"), place, undisturbed).run(Queue(place.store, 4))
    expected = adapter_of(place, undisturbed.of("step")[-1])

    first, queue = Recorder(crash_at), Queue(place.store, 4)
    with pytest.raises(KeyboardInterrupt):
        TrainerAttempt(job(spec), place, first).run(queue)
    durable = first.of("step")
    assert queue.acked == [body["batch_id"] for body in durable]  # never acknowledged before it was reported
    resume_from = durable[-1]["checkpoint"] if durable else ""
    second = Recorder()
    TrainerAttempt(job(spec, attempt=2, token=10, resume_from=resume_from), place, second).run(
        Queue(place.store, 4, attempt=2)
    )
    started = msgspec.convert(second.of("trainer_started")[0], TrainerStarted)
    assert started.resumed_version == len(durable)
    assert started.batch_ids == [f"b{i}" for i in range(len(durable))]
    if started.resumed_version == 4:
        assert second.of("step") == []
        return
    last = second.of("step")[-1]
    assert last["batch_ids"] == ["b0", "b1", "b2", "b3"]
    actual = adapter_of(place, last)
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


def test_a_run_submitted_before_an_upgrade_resumes_by_its_stored_spec(spec: RunSpec, place: Workplace):
    """A field that later versions add has its default in the parsed spec, and is none of the stored one."""
    stored = {name: value for name, value in msgspec.to_builtins(spec).items() if name != "trainer"}
    first = Recorder()
    TrainerAttempt(msgspec.structs.replace(job(spec), spec=stored), place, first).run(Queue(place.store, 2))
    resume_from = first.of("step")[-1]["checkpoint"]
    manifest = checkpoints.check_folder(Path(place.store.path(resume_from)))
    assert manifest.identity.spec_hash == stored_spec_hash(stored)
    again = Recorder()
    later = msgspec.structs.replace(job(spec), spec=stored, attempt=2, token=10, resume_from=resume_from)
    TrainerAttempt(later, place, again).run(Queue(place.store, 2, attempt=2))
    assert again.of("trainer_started")[0]["resumed_version"] == 2
    changed = msgspec.structs.replace(
        job(spec), spec=stored | {"seed": 5}, attempt=3, token=11, resume_from=resume_from
    )
    refused = Recorder()
    with pytest.raises(checkpoints.CheckpointError, match="another RunSpec"):
        TrainerAttempt(changed, place, refused).run(Queue(place.store, 2, attempt=3))


def test_a_stop_ends_early_and_a_cancel_says_nothing_more(spec: RunSpec, place: Workplace):
    stopped, queue = Recorder(), Queue(place.store, 2)
    TrainerAttempt(job(spec), place, stopped).run(queue)
    assert stopped.of("trainer_finished")[0]["version"] == 2
    assert queue.acked[-1] == "stop"
    cancelled = Recorder()
    TrainerAttempt(job(spec), place, cancelled).run(Queue(place.store, 1, cancelled=True))
    assert cancelled.of("trainer_finished") == []


def test_the_report_of_a_trained_batch_can_be_repeated(spec: RunSpec, place: Workplace):
    recorder, queue = Recorder(), Queue(place.store, 1)
    attempt = TrainerAttempt(job(spec), place, recorder)
    attempt.run(queue)
    attempt.repeat_report(queue.messages[0])
    assert recorder.reports[-1] == recorder.reports[1]


def test_a_batch_under_a_new_index_is_refused(spec: RunSpec, place: Workplace):
    queue = Queue(place.store, 2)
    queue.messages[1] = msgspec.structs.replace(queue.messages[1], batch_id="b0")
    with pytest.raises(AttemptError, match="none trains twice"):
        TrainerAttempt(job(spec), place, Recorder()).run(queue)


def test_a_group_in_a_second_batch_is_refused_even_after_a_resume(spec: RunSpec, place: Workplace):
    queue = Queue(place.store, 2)
    first, second = queue.messages[0], queue.messages[1]
    queue.messages[1] = msgspec.structs.replace(second, groups=[*second.groups[:-1], first.groups[0]])
    recorder = Recorder()
    with pytest.raises(AttemptError, match="none trains twice") as refused:
        TrainerAttempt(job(spec), place, recorder).run(queue)
    assert (refused.value.code, refused.value.retryable) == ("duplicate_group", False)
    (step,) = recorder.of("step")  # the batch before it stands
    again = TrainerAttempt(job(spec, attempt=2, resume_from=step["checkpoint"]), place, Recorder())
    with pytest.raises(AttemptError, match="none trains twice"):
        again.run(queue)


def test_the_parent_policy_is_version_zero(spec: RunSpec, place: Workplace):
    parent = Recorder()
    TrainerAttempt(job(spec, run_id="p"), place, parent).run(queue_for("p", place))
    last = parent.of("step")[-1]
    child = TrainerAttempt(
        job(spec, run_id="c", parent_checkpoint=last["adapter"], parent_sha256=last["sha256"]), place, Recorder()
    )
    backend = child._load()
    expected = adapter_of(place, last)
    assert all(torch.equal(backend.policy.parameters[name], expected[name]) for name in expected)
    assert backend.version == 0
    wrong = job(spec, run_id="c", parent_checkpoint=last["adapter"], parent_sha256="0" * 64)
    with pytest.raises(RuntimeError, match="damaged"):
        TrainerAttempt(wrong, place, Recorder()).run(Queue(place.store, 0))


def queue_for(run_id: str, place: Workplace) -> Queue:
    queue = Queue(place.store, 1)
    queue.messages = {k: msgspec.structs.replace(m, run_id=run_id) for k, m in queue.messages.items()}
    return queue


def test_only_the_newest_states_are_kept(spec: RunSpec, place: Workplace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(publishing, "KEEP_STATES", 2)
    recorder = Recorder()
    TrainerAttempt(job(spec), place, recorder).run(Queue(place.store, 4))
    folders = [Path(place.store.path(body["checkpoint"])) for body in recorder.of("step")]
    assert [(f / "state").exists() for f in folders] == [False, False, True, True]
    for folder in folders:
        checkpoints.check_folder(folder, part="adapter")


@pytest.mark.parametrize("limit", [1, 3])
def test_refused_updates_in_a_row_end_the_run(
    spec: RunSpec, place: Workplace, monkeypatch: pytest.MonkeyPatch, limit: int
):
    limits = msgspec.structs.replace(spec.limits, max_skipped_updates=limit)
    spec = msgspec.structs.replace(spec, limits=limits)
    attempt = TrainerAttempt(job(spec), place, Recorder())
    backend = attempt._load()
    with torch.no_grad():
        backend.policy.model.norm[0] = float("nan")
    monkeypatch.setattr(attempt, "_load", lambda: backend)
    with pytest.raises(AttemptError, match=f"{limit} updates in a row.*at version {limit} .*of episode") as caught:
        attempt.run(Queue(place.store, 4))
    failure = describe_failure(caught.value)
    assert (failure.code, failure.retryable) == ("non_finite_gradients", False)


def test_an_unknown_base_model_says_what_to_do(spec: RunSpec, place: Workplace):
    with pytest.raises(AttemptError, match=r"python -m gpu_workers\.models"):
        TrainerAttempt(job(spec, base_model="nowhere"), place, Recorder()).run(Queue(place.store, 0))


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        (checkpoints.CheckpointError("torn"), "bad_checkpoint", False),
        (OSError(28, "No space left on device"), "input_output", True),
        (RuntimeError("odd"), "internal", True),
    ],
)
def test_failures_say_whether_trying_again_helps(error: Exception, code: str, retryable: bool):
    failure = describe_failure(error)
    assert (failure.code, failure.retryable) == (code, retryable)
    assert str(error) in failure.message


@pytest.mark.parametrize(("transfer", "whole"), [("broadcast", True), ("delta", False), ("auto", False)])
def test_versions_are_published_whole_for_transfers_that_want_them_so(
    spec: RunSpec, place: Workplace, monkeypatch: pytest.MonkeyPatch, transfer: str, whole: bool
) -> None:
    """However much a step of the tiny model changes: a delta is worth while here whatever its size."""
    monkeypatch.setattr("gpu_workers.weights.delta.publisher.WORTHWHILE", 1e9)
    trained = msgspec.structs.replace(spec, trainer=TrainerSpec(update=Update.FULL, transfer=Transfer(transfer)))
    recorder = Recorder()
    TrainerAttempt(job(trained), replace(place, snapshot_every=100), recorder).run(Queue(place.store, 2))
    last = Path(place.store.path(recorder.of("step")[-1]["adapter"]))
    assert ((last / "model.safetensors").is_file(), recorder.of("step")[-1]["version"]) == (whole, 2)
