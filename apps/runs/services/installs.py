"""Installs of policy versions on the fleet: requests, confirmations, repeats, retirement."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from django.conf import settings
from django.utils import timezone

from apps.policies.models import Policy
from apps.runs import messaging
from apps.runs.models import Checkpoint, FleetInstall, FleetLease, Group, InstallState, Run
from apps.runs.services import groups, leases
from apps.runs.services.leases import SILENCE_AFTER
from apps.runs.signals import install_finished
from gpu_workers.contracts.checkpoints import read_name, version_name
from gpu_workers.contracts.messages import AdapterInstall, FleetJob, PolicyInstalled
from gpu_workers.contracts.transfers import Transfer
from ratchet.commits import after_commit

ENGINE_DOWN_AFTER = timedelta(minutes=5)  # an install unconfirmed for so long is given up
RETRY_AFTER = timedelta(seconds=5)  # a refusal
KEEP_ADAPTERS = 4  # newest versions of a run that stay loaded though unused


def request_install(
    *,
    base_model: str,
    install: list[AdapterInstall],
    retire: list[str],
    run: Run | None = None,
    attempt: int = 0,
    version: int = 0,
    transfer: Transfer = Transfer.ADAPTER,
    lease: FleetLease | None = None,
) -> FleetInstall:
    """Ask the fleet to hold `install` and drop `retire`; the answer comes as signal `install_finished`.

    Transfers of whole models go to the engines that `lease` is a turn on.
    """
    assert (transfer is Transfer.ADAPTER) == (lease is None)
    row = FleetInstall.objects.create(
        run=run,
        attempt=attempt,
        version=version,
        base_model=base_model,
        install=[msgspec.to_builtins(item) for item in install],
        retire=retire,
        transfer=transfer,
        lease=lease,
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
        transfer=Transfer(row.transfer),
        engines=[] if row.transfer == Transfer.ADAPTER else list(settings.ROLLOUT_FULL_ENGINE_URLS),
        run_id=str(row.run_id or ""),
        run_attempt=row.attempt,
    )
    after_commit(messaging.send_fleet, job)


def apply_answer(row: FleetInstall, answer: PolicyInstalled) -> None:
    """Store the fleet's answer to a locked request. A refusal is kept as the reason and asked again later."""
    if row.state != InstallState.REQUESTED:
        return
    if row.lease is not None and row.lease.released_at is not None:
        leases.call_next()  # the next holder waits for this answer
    row.message = answer.message.replace("\x00", "�")[:2000]
    if not answer.ok:
        row.message = row.message or "the fleet refused without a reason"
        if row.lease is not None and row.lease.released_at is not None:
            row.state, row.finished_at = InstallState.FAILED, timezone.now()
        row.save(update_fields=["message", "state", "finished_at"])
        return
    row.state = InstallState.CONFIRMED
    row.finished_at = timezone.now()
    row.duration_seconds = answer.duration_seconds
    row.pause_seconds = answer.pause_seconds
    row.steady_gap_seconds = answer.steady_gap_seconds
    row.num_bytes = max(0, answer.num_bytes)
    row.density = answer.density
    row.transfer = answer.transfer if answer.transfer in [*Transfer] else row.transfer
    row.engines = answer.engines
    row.save()
    if row.transfer != Transfer.ADAPTER and row.install:  # whatever the engines had is gone from them
        replaced = Checkpoint.objects.filter(install_state=InstallState.CONFIRMED, run__whole_weights=True)
        replaced.update(install_state=InstallState.RETIRED)
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
    rows = rows.filter(lease__released_at=None)  # else the engines are another's by now
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


def start_of(run: Run) -> list[AdapterInstall]:
    """Version 0 of a run: what its policy adds to the bare base model, or all weights where those are trained."""
    policy = run.policy
    if run.whole_weights:
        name = policy_names(run, 0)["policy_weights"]
        return [AdapterInstall(name=name, uri=policy.adapter, sha256=policy.adapter_sha256, version=0)]
    if not policy.adapter:
        return []
    return [AdapterInstall(name=policy.engine_name, uri=policy.adapter, sha256=policy.adapter_sha256, version=0)]


def policy_names(run: Run, version: int) -> dict[str, str]:
    """The version on the engines as groups name it: `policy_weights` where all are replaced, else `policy_adapter`.

    Both empty: the bare base model.
    """
    if version > 0:
        name = run.checkpoints.get(version=version).engine_name
    else:
        # Of attempt 0, so that every version of the run counts as a later one.
        name = version_name(str(run.pk), 0, 0) if run.whole_weights else run.policy.engine_name
    field, other = ("policy_weights", "policy_adapter") if run.whole_weights else ("policy_adapter", "policy_weights")
    return {field: name, other: ""}


def transfer_of(run: Run) -> Transfer:
    """How the run's versions reach the engines; `auto` is left to the fleet worker, which knows where they are."""
    return Transfer(run.spec["trainer"].get("transfer", Transfer.AUTO)) if run.whole_weights else Transfer.ADAPTER


def find_checkpoint(name: str) -> Checkpoint | None:
    """The checkpoint behind an adapter name `run-<id>.a<attempt>@v<version>`."""
    told = read_name(name)
    if told is None:
        return None
    try:
        run_id = UUID(told.run_id)
    except ValueError:
        return None
    return Checkpoint.objects.filter(run_id=run_id, attempt=told.attempt, version=told.version).first()


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


def ensure_policies(group: Group, base_model: str) -> FleetInstall | None:
    """An engine failed under this group: have the fleet hold again what open groups need, once at a time."""
    if group.policy_weights:
        return _ensure_weights(group, base_model)
    run = group.run
    version = run.confirmed_version if run else 0
    if FleetInstall.objects.filter(run=run, state=InstallState.REQUESTED, version__lte=max(version, 0)).exists():
        return None
    same = Group.objects.filter(project_id=group.project_id, run=run, state__in=groups.UNFINISHED_STATES)
    names = {group.policy_adapter, *same.values_list("policy_adapter", flat=True).distinct()}
    if run is not None:
        current = policy_names(run, run.confirmed_version)["policy_adapter"]
        names.add(current)  # what groups that are sent again will name
    install = resolve_adapters(group.project_id, names)
    if not install and run is None:
        return None
    return request_install(
        base_model=base_model, install=install, retire=[], run=run, attempt=group.run_attempt, version=max(version, 0)
    )


def _ensure_weights(group: Group, base_model: str) -> FleetInstall | None:
    """An engine that restarted has the weights it starts with. Evaluations see to theirs when they are advanced."""
    run = group.run
    lease = leases.held_by(run) if run else None
    if run is None or lease is None or run.installs.filter(state=InstallState.REQUESTED).exists():
        return None
    version = max(run.confirmed_version, 0)
    checkpoint = run.checkpoints.filter(version=version).first()
    return request_install(
        base_model=base_model,
        install=[adapter_of(checkpoint)] if checkpoint else start_of(run),
        retire=[],
        run=run,
        attempt=group.run_attempt,
        version=version,
        transfer=transfer_of(run),
        lease=lease,
    )


def unused_adapters(run: Run, keep: int) -> list[str]:
    """Loaded versions of a run, but the newest `keep` and those that open groups name; whole weights stay until the
    next take their place."""
    if run.whole_weights:
        return []
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
