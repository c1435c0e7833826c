"""Installs of policy versions on the fleet: requests, confirmations, repeats, retirement."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from django.utils import timezone

from apps.policies.models import Policy
from apps.runs import messaging
from apps.runs.models import Checkpoint, FleetInstall, Group, InstallState, Run
from apps.runs.services import groups
from apps.runs.signals import install_finished
from gpu_workers.contracts.messages import AdapterInstall, FleetJob, PolicyInstalled
from gpu_workers.contracts.runspec import Update
from gpu_workers.contracts.transfers import Transfer
from ratchet.commits import after_commit

ENGINE_DOWN_AFTER = timedelta(minutes=5)  # an install unconfirmed for so long is given up
RETRY_AFTER = timedelta(seconds=5)  # a refusal
SILENCE_AFTER = timedelta(minutes=2)  # no answer at all
KEEP_ADAPTERS = 4  # newest versions of a run that stay loaded though unused


def request_install(
    *,
    base_model: str,
    install: list[AdapterInstall],
    retire: list[str],
    run: Run | None = None,
    attempt: int = 0,
    version: int = 0,
) -> FleetInstall:
    """Ask the fleet to hold `install` and drop `retire`; the answer comes as signal `install_finished`."""
    row = FleetInstall.objects.create(
        run=run,
        attempt=attempt,
        version=version,
        base_model=base_model,
        install=[msgspec.to_builtins(item) for item in install],
        retire=retire,
        sent_at=timezone.now(),
    )
    _send(row)
    return row


def _send(row: FleetInstall) -> None:
    job = FleetJob(
        job_id=str(row.id),
        base_model=row.base_model,
        install=msgspec.convert(row.install, list[AdapterInstall]),
        retire=row.retire,
        transfer=_transfer_of(row.run),
        run_id=str(row.run_id or ""),
        run_attempt=row.attempt,
    )
    after_commit(messaging.send_fleet, job)


def _transfer_of(run: Run | None) -> Transfer:
    """By the run's spec; `auto` is left to the fleet worker, which knows where the engines are."""
    trainer = run.spec.get("trainer", {}) if run else {}
    if trainer.get("update", Update.LORA) == Update.LORA:
        return Transfer.ADAPTER
    return Transfer(trainer.get("transfer", Transfer.AUTO))


def apply_answer(row: FleetInstall, answer: PolicyInstalled) -> None:
    """Store the fleet's answer to a locked request. A refusal is kept as the reason and asked again later."""
    if row.state != InstallState.REQUESTED:
        return
    row.message = answer.message.replace("\x00", "�")[:2000]
    if not answer.ok:
        row.message = row.message or "the fleet refused without a reason"
        row.save(update_fields=["message"])
        return
    row.state = InstallState.CONFIRMED
    row.finished_at = timezone.now()
    row.duration_seconds = answer.duration_seconds
    row.pause_seconds = answer.pause_seconds
    row.steady_gap_seconds = answer.steady_gap_seconds
    row.num_bytes = max(0, answer.num_bytes)
    row.engines = answer.engines
    row.save()
    for item in row.install:
        _mark(item["name"], InstallState.CONFIRMED)
    for name in row.retire:
        _mark(name, InstallState.RETIRED)
    install_finished.send(sender=FleetInstall, install=row, answer=answer)


def _mark(name: str, state: InstallState) -> None:
    checkpoint = find_checkpoint(name)
    if checkpoint is not None and checkpoint.install_state != state:
        checkpoint.install_state = state
        checkpoint.save(update_fields=["install_state"])


def repeat_unanswered(run: Run | None, now: datetime) -> FleetInstall | None:
    """Ask again where an answer is missing or was a refusal. Returns a request that was given up."""
    rows = FleetInstall.objects.filter(run=run, state=InstallState.REQUESTED).order_by("created_at")
    for row in rows.select_for_update(skip_locked=True, no_key=True, of=("self",)):
        if now - row.sent_at < (RETRY_AFTER if row.message else SILENCE_AFTER):
            continue
        if now - row.created_at > ENGINE_DOWN_AFTER:
            _give_up(row, now)
            return row
        row.tries += 1
        row.sent_at = now
        row.save(update_fields=["tries", "sent_at"])
        _send(row)
    return None


def _give_up(row: FleetInstall, now: datetime) -> None:
    row.state = InstallState.FAILED
    row.finished_at = now
    row.message = row.message or "no fleet worker answered: start one (queue fleet) and look at its log"
    row.save(update_fields=["state", "finished_at", "message"])
    install_finished.send(sender=FleetInstall, install=row)


def adapter_of(checkpoint: Checkpoint) -> AdapterInstall:
    return AdapterInstall(
        name=checkpoint.engine_name, uri=checkpoint.adapter, sha256=checkpoint.sha256, version=checkpoint.version
    )


def parent_adapter(run: Run) -> list[AdapterInstall]:
    """Version 0 of a run: its policy's adapter, or nothing when that is the bare base model."""
    policy = run.policy
    if not policy.adapter:
        return []
    return [AdapterInstall(name=policy.engine_name, uri=policy.adapter, sha256=policy.adapter_sha256, version=0)]


def adapter_name(run: Run, version: int) -> str:
    """Adapter of a version on the engines; empty: the bare base model."""
    if version <= 0:
        return run.policy.engine_name
    return run.checkpoints.get(version=version).engine_name


def find_checkpoint(name: str) -> Checkpoint | None:
    """The checkpoint behind an adapter name `run-<id>.a<attempt>@v<version>`."""
    head, _, version = name.removeprefix("run-").rpartition("@v")
    run_id, _, attempt = head.rpartition(".a")
    try:
        key, numbers = UUID(run_id), (int(attempt), int(version))
    except ValueError:
        return None
    return Checkpoint.objects.filter(run_id=key, attempt=numbers[0], version=numbers[1]).first()


def find_policy(project_id: UUID, name: str) -> Policy | None:
    """The policy behind an adapter name `policy-<digest>`; equal bytes share it."""
    if not name.startswith("policy-"):
        return None
    digest = name.removeprefix("policy-")
    rows = Policy.objects.filter(project_id=project_id, adapter_sha256__startswith=digest)
    return rows.select_related("base_model").first()


def resolve_adapters(project_id: UUID, names: Iterable[str]) -> list[AdapterInstall]:
    """How to load adapters by their names; names that nothing knows are left out."""
    found = []
    for name in sorted(set(filter(None, names))):
        if (checkpoint := find_checkpoint(name)) is not None:
            found.append(adapter_of(checkpoint))
        elif (policy := find_policy(project_id, name)) is not None:
            found.append(AdapterInstall(name=name, uri=policy.adapter, sha256=policy.adapter_sha256))
    return found


def ensure_adapters(group: Group, base_model: str) -> FleetInstall | None:
    """An engine failed under this group: have the fleet load again what open groups need, once at a time."""
    run = group.run
    version = run.confirmed_version if run else 0
    if FleetInstall.objects.filter(run=run, state=InstallState.REQUESTED, version__lte=max(version, 0)).exists():
        return None
    same = Group.objects.filter(project_id=group.project_id, run=run, state__in=groups.UNFINISHED_STATES)
    names = {group.policy_adapter, *same.values_list("policy_adapter", flat=True).distinct()}
    if run is not None:
        names.add(adapter_name(run, run.confirmed_version))  # what groups that are sent again will name
    install = resolve_adapters(group.project_id, names)
    if not install and run is None:
        return None
    return request_install(
        base_model=base_model, install=install, retire=[], run=run, attempt=group.run_attempt, version=max(version, 0)
    )


def unused_adapters(run: Run, keep: int) -> list[str]:
    """Loaded versions of a run, but the newest `keep` and those that open groups name."""
    loaded = run.checkpoints.filter(install_state=InstallState.CONFIRMED).order_by("-version")
    names = [checkpoint.engine_name for checkpoint in loaded][keep:]
    used = groups.adapters_in_use(names)
    return [name for name in names if name not in used]


def retire_all(run: Run) -> None:
    """The run is over: drop its adapters from the fleet, but those still in use."""
    names = unused_adapters(run, keep=0)
    if names:
        # Of no run: a run that is over is not advanced, and this may have to be asked again.
        request_install(base_model=run.policy.base_model.slug, install=[], retire=names)


def refused(run: Run) -> FleetInstall | None:
    """A request that the fleet has refused and that is being repeated."""
    return run.installs.filter(state=InstallState.REQUESTED).exclude(message="").order_by("created_at").first()
