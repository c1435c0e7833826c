"""Which policy version the fleet holds for a run, and which it should hold next."""

from django.dispatch import receiver

from apps.runs.events import record_event
from apps.runs.models import FleetInstall, InstallState, Run
from apps.runs.services import installs
from apps.runs.signals import install_finished, run_changed


def adapter_name(run: Run, version: int) -> str:
    """Adapter of a version on the engines; empty: the bare base model."""
    if version <= 0:
        return run.policy.engine_name
    return run.checkpoints.get(version=version).engine_name


def install_versions(run: Run) -> FleetInstall | None:
    """Ask for the newest durable version, one request at a time; versions in between are skipped."""
    newest = run.checkpoints.exclude(adapter="").order_by("-version").first()
    wanted = newest.version if newest else 0
    if wanted <= run.confirmed_version:
        return None
    if run.installs.filter(state=InstallState.REQUESTED, version__gt=run.confirmed_version).exists():
        return None
    if newest is None:
        install, attempt, retire = installs.parent_adapter(run), 0, []
    else:
        install, attempt = [installs.adapter_of(newest)], newest.attempt
        retire = installs.unused_adapters(run, keep=installs.KEEP_ADAPTERS - 1)
        newest.install_state = InstallState.REQUESTED
        newest.save(update_fields=["install_state"])
    return installs.request_install(
        base_model=run.policy.base_model.slug, install=install, retire=retire, run=run, attempt=attempt, version=wanted
    )


@receiver(install_finished, dispatch_uid="runs.confirm_version")
def confirm_version(install: FleetInstall, **kwargs: object) -> None:
    """Move the confirmed version on; the run is locked by who applies the answer."""
    run = install.run
    if run is None or install.state != InstallState.CONFIRMED or install.version <= run.confirmed_version:
        return
    Run.objects.filter(pk=run.pk, confirmed_version__lt=install.version).update(confirmed_version=install.version)
    run.confirmed_version = install.version
    pause = f"; generation paused {install.pause_seconds:.2f} s" if install.pause_seconds else ""
    text = f"Version {install.version} is confirmed by {max(1, len(install.engines))} engine(s){pause}."
    record_event(run, "installed", text, version=install.version, engines=install.engines)
    run_changed.send(sender=Run, run=run)
