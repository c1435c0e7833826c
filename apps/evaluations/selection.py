"""Chooses a run's checkpoint on the dev split and makes the run's policy of it. Held-out tasks play no part."""

from uuid import UUID

from django.db import transaction
from django.db.models import Count, F, Q

from apps.accounts.permissions import Permission, has_permission
from apps.evaluations.models import Evaluation, EvaluationPurpose, EvaluationState
from apps.evaluations.plans import ArmSpec
from apps.evaluations.services import start_evaluation
from apps.evaluations.states import FINAL_STATES
from apps.policies.models import Policy, PolicyKind
from apps.policies.services import create_policy
from apps.runs.models import Checkpoint, Episode, Run, RunState
from apps.runs.services import finish_run
from apps.tasks.models import SplitName
from apps.tasks.selectors import ready_tasks
from gpu_workers.contracts.messages import Sampling
from gpu_workers.contracts.runspec import Algorithm, RunSpec, parse_run_spec


def consider_checkpoint(checkpoint: Checkpoint) -> Evaluation | None:
    """Start the dev evaluation of a new checkpoint when its step is due for one."""
    run = checkpoint.run
    spec = parse_run_spec(run.spec)
    every = spec.evaluation.dev_every
    due = checkpoint.version == run.total_steps or (every > 0 and checkpoint.version % every == 0)
    return evaluate_on_dev(run, checkpoint, spec) if due else None


def evaluate_on_dev(run: Run, checkpoint: Checkpoint, spec: RunSpec) -> Evaluation | None:
    """Start a dev evaluation; None when the run asks for none, the suite has no dev tasks, or it exists already."""
    if not _has_dev(run, spec) or checkpoint.version == 0:
        return None
    if Evaluation.objects.filter(purpose=EvaluationPurpose.DEV, arms__checkpoint=checkpoint).exists():
        return None
    sampling = Sampling(
        max_new_tokens=spec.evaluation.max_new_tokens or spec.rollout.max_new_tokens,
        temperature=spec.evaluation.temperature,
        seed=spec.seed,
    )
    return start_evaluation(
        project=run.project,
        suite=run.suite,
        split=SplitName.DEV,
        purpose=EvaluationPurpose.DEV,
        arms=[ArmSpec(f"v{checkpoint.version}", checkpoint=checkpoint, num_shots=spec.rollout.num_shots)],
        samples=1,
        sampling=sampling,
        by=None,
        run=run,
        max_tasks=spec.evaluation.dev_tasks,
    )


def _has_dev(run: Run, spec: RunSpec) -> bool:
    return spec.evaluation.dev_tasks > 0 and ready_tasks(run.suite, SplitName.DEV).exists()


def store_dev_success(evaluation: Evaluation) -> None:
    """Note on the checkpoint what its finished dev evaluation measured."""
    if evaluation.state != EvaluationState.FINISHED:
        return
    for arm in evaluation.arms.select_related("checkpoint"):
        if arm.checkpoint is None:
            continue
        counts = Episode.objects.filter(group__evaluation_item__arm=arm).aggregate(
            n=Count("pk", filter=Q(reward__isnull=False)), passed=Count("pk", filter=Q(success=True))
        )
        if counts["n"]:
            Checkpoint.objects.filter(pk=arm.checkpoint.pk).update(
                dev_success=counts["passed"] / counts["n"], dev_n=counts["n"]
            )


def choose_checkpoint(run_id: UUID | str) -> Policy | None:
    """When every dev evaluation of a trained run is over, make the best checkpoint a policy and finish the run.

    Ties go to the earliest. Without dev tasks, or when none could be scored, the last checkpoint is taken.
    """
    with transaction.atomic():
        rows = Run.objects.select_for_update(no_key=True, of=("self",))
        run = rows.select_related("project", "suite", "policy__base_model", "created_by").get(pk=run_id)
        if run.state != RunState.TRAINED:
            return None
        last = run.checkpoints.exclude(adapter="").order_by("-version").first()
        if last is None:
            finish_run(run=run, result=None, message="The run published no checkpoint.")
            return None
        spec = parse_run_spec(run.spec)
        if evaluate_on_dev(run, last, spec) is not None:
            return None
        if run.evaluations.filter(purpose=EvaluationPurpose.DEV).exclude(state__in=FINAL_STATES).exists():
            return None
        best, why = _best(run, last, spec)
        policy = _make_policy(run, best, spec)
        finish_run(run=run, result=policy, message=f"Policy {policy.slug} made of version {best.version}: {why}.")
        return policy


def _best(run: Run, last: Checkpoint, spec: RunSpec) -> tuple[Checkpoint, str]:
    measured = run.checkpoints.filter(dev_success__isnull=False).exclude(adapter="")
    best = measured.order_by(F("dev_success").desc(), "version").first()
    if best is not None:
        share = f"{100 * (best.dev_success or 0):.1f} % of {best.dev_n} dev tasks"
        return best, f"{share}, best of {measured.count()} evaluated"
    if not _has_dev(run, spec):
        return last, "the last one, as the run has no dev tasks to choose by"
    return last, "the last one, as no dev evaluation could be scored"


def _make_policy(run: Run, checkpoint: Checkpoint, spec: RunSpec) -> Policy:
    slug = f"run-{run.number}-v{checkpoint.version}"
    existing = Policy.objects.filter(project=run.project, run_id=run.pk, run_version=checkpoint.version).first()
    if existing is not None:
        return existing
    by = run.created_by if has_permission(run.created_by, Permission.POLICY_CREATE, run.project) else None
    supervised = spec.algorithm.kind is Algorithm.SFT
    return create_policy(
        project=run.project,
        slug=slug,
        title=run.name or f"Run {run.number}, version {checkpoint.version}",
        kind=PolicyKind.SUPERVISED if supervised else PolicyKind.REINFORCED,
        base_model=run.policy.base_model,
        by=by,
        num_shots=spec.rollout.num_shots,
        parent=run.policy,
        adapter=checkpoint.adapter,
        adapter_sha256=checkpoint.sha256,
        adapter_bytes=checkpoint.num_bytes,
        run_id=run.pk,
        run_version=checkpoint.version,
        train_cpu_seconds=checkpoint.train_cpu_seconds,
        whole_weights=run.whole_weights,
    )
