"""Signals of the runs app, sent inside the transaction that writes; receivers do slow things on commit."""

from django.dispatch import Signal

run_changed = Signal()  # run
step_stored = Signal()  # run, checkpoint (None where the step published nothing), report: StepReport, attempt
checkpoint_published = Signal()  # run, checkpoint
group_stored = Signal()  # group, after its episodes; evaluation groups too, also when closed without any
install_finished = Signal()  # install: FleetInstall, confirmed or given up; answer: PolicyInstalled where confirmed
fleet_lease_due = Signal()  # lease: FleetLease of an evaluation whose turn it may be
run_trained = Signal()  # run
worker_sampled = Signal()  # run (None: of no run), sample: WorkerSample
run_event = Signal()  # event: RunEvent
