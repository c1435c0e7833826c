"""Which policy version the fleet holds for a run, and which it should hold next."""

from django.dispatch import receiver

from apps.runs import messaging
from apps.runs.events import record_event
from apps.runs.models import FleetInstall, GroupState, InstallState, Run
from apps.runs.services import installs, leases
from apps.runs.signals import install_finished, run_changed
from gpu_workers.contracts.messages import GroupSignal, PolicyRef, Transfer
from gpu_workers.contracts.runspec import parse_run_spec
from gpu_workers.contracts.scheduling import Stragglers
from ratchet.commits import after_commit


def install_versions(run: Run) -> FleetInstall | None:
    """Ask for the newest durable version, one request at a time; versions in between are skipped."""
    newest = run.checkpoints.exclude(adapter="").order_by("-version").first()
    wanted = newest.version if newest else 0
    if wanted <= run.confirmed_version:
        return None
    asked = run.installs.filter(state=InstallState.REQUESTED)
    if not run.whole_weights:
        asked = asked.filter(version__gt=run.confirmed_version)
    if asked.exists():  # of whole weights one at a time: a repair that comes late would put the older ones back
        return None
    if newest is None:
        install, attempt, retire = installs.start_of(run), 0, []
    else:
        install, attempt = [installs.adapter_of(newest)], newest.attempt
        retire = installs.unused_adapters(run, keep=installs.KEEP_ADAPTERS - 1)
        newest.install_state = InstallState.REQUESTED
        newest.save(update_fields=["install_state"])
    return installs.request_install(
        base_model=run.policy.base_model.slug,
        install=install,
        retire=retire,
        run=run,
        attempt=attempt,
        version=wanted,
        transfer=installs.transfer_of(run),
        lease=leases.held_by(run),
    )


@receiver(install_finished, dispatch_uid="runs.confirm_version")
def confirm_version(install: FleetInstall, **kwargs: object) -> None:
    """Move the confirmed version on; the run is locked by who applies the answer."""
    run = install.run
    if run is None or install.state != InstallState.CONFIRMED or install.version <= run.confirmed_version:
        return
    Run.objects.filter(pk=run.pk, confirmed_version__lt=install.version).update(confirmed_version=install.version)
    run.confirmed_version = install.version
    record_event(run, "installed", _describe(install), version=install.version, engines=install.engines)
    _move_episodes(run)
    run_changed.send(sender=Run, run=run)


def _describe(install: FleetInstall) -> str:
    how = ""
    if install.transfer != Transfer.ADAPTER:
        density = f", {100 * install.density:.3g} % of the weights changed" if install.density is not None else ""
        how = f" by {install.transfer}, {install.num_bytes / 1e6:.1f} MB moved{density}"
    pause = f"; generation paused {install.pause_seconds:.2f} s" if install.pause_seconds else ""
    return f"Version {install.version} is confirmed by {max(1, len(install.engines))} engine(s){how}{pause}."


def _move_episodes(run: Run) -> None:
    """Partial rollouts: episodes under way go on with the version that was just confirmed, if the spec says so."""
    rollout = parse_run_spec(run.spec).rollout
    if rollout.stragglers is not Stragglers.CONTINUE or run.whole_weights:  # with these they have gone on already
        return
    running = run.groups.filter(state=GroupState.RUNNING, policy_version__lt=run.confirmed_version)
    ids = [str(key) for key in running.values_list("id", flat=True)]
    if not ids:
        return
    name = installs.policy_names(run, run.confirmed_version)["policy_adapter"]
    policy = PolicyRef(adapter=name, version=run.confirmed_version, num_shots=rollout.num_shots)
    after_commit(messaging.signal_groups, GroupSignal(group_ids=ids, policy=policy))
