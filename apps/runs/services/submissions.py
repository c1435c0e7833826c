"""Submission of runs: validation, numbering, freezing of the spec."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from django.db import transaction
from django.db.models import Max

from apps.accounts.models import Project, User
from apps.accounts.permissions import Permission, require
from apps.policies.models import Policy
from apps.runs.events import record_event
from apps.runs.models import Run
from apps.runs.scheduling.admission import num_admissible
from apps.runs.services import leases
from apps.runs.services.lifecycle import advance_soon, audit
from apps.runs.signals import run_changed
from apps.tasks.models import SplitName, Suite, SuiteState
from apps.tasks.selectors import ready_tasks, resolve_suite
from gpu_workers.contracts.enums import Split
from gpu_workers.contracts.runspec import Algorithm, RunSpec, SpecError, Update, parse_run_spec, spec_hash
from ratchet.problems import Problem

MAX_OPEN_EPISODES = 50_000  # of one run; 10,000 were measured
_MAX_LISTED = 20
_MAX_NAME = 200


@dataclass(frozen=True)
class Submission:
    """A spec that can run, with its defaults filled in, and what it names."""

    spec: RunSpec
    suite: Suite
    policy: Policy

    @property
    def spec_hash(self) -> str:
        return spec_hash(self.spec)


def check_submission(*, project: Project, spec: dict[str, Any], by: User | None) -> Submission:
    """What `submit_run` would run; nothing is stored. Raises Problem 422 naming every wrong field, 403/404 without
    the right."""
    require(by, Permission.RUN_CREATE, project)
    parsed = _parse(spec)
    found, refusals = _look_up(project, parsed.suite, parsed.policy)
    if policy := found.get("policy"):
        refusals += _context_problems(parsed, policy)
        refusals += _start_problems(parsed, policy)
    refusals += _fleet_problems(parsed)
    refusals += _size_problems(parsed)
    if refusals:
        errors = [error for problem in refusals for error in problem.errors]
        raise Problem("invalid_run_spec", 422, refusals[0].detail, errors)
    parsed = msgspec.structs.replace(parsed, suite=str(found["suite"]))  # the version is part of what the hash names
    return Submission(parsed, found["suite"], found["policy"])


def unknown_names(project: Project, spec: Any) -> list[dict[str, str]]:
    """What is wrong with the suite and the policy that a spec names, however wrong the rest of it is."""
    names = [spec.get(name) if isinstance(spec, dict) else None for name in ("suite", "policy")]
    _, refusals = _look_up(project, *(name if isinstance(name, str) else None for name in names))
    return [error for problem in refusals for error in problem.errors]


def _look_up(project: Project, suite: str | None, policy: str | None) -> tuple[dict[str, Any], list[Problem]]:
    """Suite and policy of these names as far as there are, and a refusal of each other one; None is not looked up."""
    found: dict[str, Any] = {}
    refusals: list[Problem] = []
    for kind, name, look in (("suite", suite, _suite), ("policy", policy, _policy)):
        try:
            if name is not None:
                found[kind] = look(project, name)
        except Problem as problem:
            refusals.append(problem)
    return found, refusals


@transaction.atomic
def submit_run(*, project: Project, spec: dict[str, Any], by: User | None, retry_of: Run | None = None) -> Run:
    """Queue a run of this RunSpec. Raises Problem 422 naming the field, 403/404 without the right."""
    wanted = check_submission(project=project, spec=spec, by=by)
    parsed, suite, policy = wanted.spec, wanted.suite, wanted.policy
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)  # one numbering at a time
    number = (project.runs.aggregate(last=Max("number"))["last"] or 0) + 1
    run = Run.objects.create(
        project=project,
        number=number,
        name=parsed.name or f"{parsed.algorithm.kind} on {suite.slug}",
        spec=msgspec.to_builtins(parsed),
        spec_hash=wanted.spec_hash,
        suite=suite,
        policy=policy,
        retry_of=retry_of,
        whole_weights=parsed.trainer.update is Update.FULL,
        total_steps=0 if parsed.algorithm.kind is Algorithm.SFT else parsed.steps,
        created_by=by,
    )
    origin = f", again after run {retry_of.number}" if retry_of else ""
    record_event(run, "queued", f"Run {number} was submitted on {suite} from policy {policy.slug}{origin}.")
    audit(
        run, "submit", by, spec_hash=run.spec_hash, suite=str(suite), suite_hash=suite.content_hash, policy=policy.slug
    )
    run_changed.send(sender=Run, run=run)
    advance_soon(run)
    return run


def _context_problems(spec: RunSpec, policy: Policy) -> Iterator[Problem]:
    limit = policy.base_model.context_length
    for path, value in (
        ("rollout.max_new_tokens", spec.rollout.max_new_tokens),
        ("evaluation.max_new_tokens", spec.evaluation.max_new_tokens),
    ):
        if value >= limit:
            yield _invalid(
                path, f"is {value}; {policy.base_model} has a context of {limit} tokens for prompt and answer"
            )


def _start_problems(spec: RunSpec, policy: Policy) -> Iterator[Problem]:
    """Refusal of a policy that the kind of update cannot start from."""
    if spec.trainer.update is Update.LORA and policy.whole_weights:
        yield _invalid(
            "policy",
            f"{policy.slug} keeps whole weights, and adapters are served on the base model {policy.base_model}: set "
            "trainer.update to full, or start from a policy without them",
        )
    supervised = spec.algorithm.kind is Algorithm.SFT
    if spec.trainer.update is Update.FULL and not supervised and policy.adapter and not policy.whole_weights:
        yield _invalid(
            "policy",
            f"{policy.slug} is an adapter, which the engines of full runs do not add to the base model: start from the "
            "base model or from whole weights, or set trainer.update to lora",
        )


def _fleet_problems(spec: RunSpec) -> Iterator[Problem]:
    if spec.trainer.update is Update.FULL and not leases.has_fleet():
        yield _invalid("trainer.update", f"full: {leases.NO_FLEET}")


def _size_problems(spec: RunSpec) -> Iterator[Problem]:
    """Refusal of a batch with which more episodes would be open at once than the bound on them allows."""
    rollout = spec.rollout
    if spec.algorithm.kind is Algorithm.SFT:
        return
    groups = num_admissible(rollout.prompts_per_batch, rollout.max_staleness, rollout.over_sampling)
    episodes = groups * rollout.group_size
    if episodes > MAX_OPEN_EPISODES:
        per_group = (rollout.max_staleness + 1 + rollout.over_sampling) * rollout.group_size
        fits = int(MAX_OPEN_EPISODES / per_group)
        remedy = f"at most {fits} fit" if fits else "lower max_staleness or group_size too"
        yield _invalid(
            "rollout.prompts_per_batch",
            f"is {rollout.prompts_per_batch}; with group_size {rollout.group_size}, max_staleness "
            f"{rollout.max_staleness} and over_sampling {rollout.over_sampling:g} it opens {episodes:,} episodes at "
            f"once, and the bound is {MAX_OPEN_EPISODES:,}: {remedy}",
        )


def _parse(spec: Any) -> RunSpec:
    if not isinstance(spec, dict):
        raise _invalid("spec", "must be an object")
    try:
        parsed = parse_run_spec(spec)
    except SpecError as error:
        problem = _invalid(error.path, error.message)
        problem.errors += [{"path": path, "message": message} for path, message in error.others]
        raise problem from error
    if len(parsed.name) > _MAX_NAME:
        raise _invalid("name", f"has more than {_MAX_NAME} characters")
    return parsed


def _suite(project: Project, name: str) -> Suite:
    try:
        suite = resolve_suite(project, name)
    except Problem as problem:
        raise _invalid("suite", problem.detail) from problem
    if suite.state != SuiteState.READY:
        raise _invalid(
            "suite", f"{suite} is {suite.get_state_display().lower()}: {suite.status_message or 'wait for it'}"
        )
    if not suite.distribution.strip() or not suite.failure_modes:
        raise _invalid("suite", f"{suite} declares no task distribution or failure modes: import it with both")
    if not suite.tasks.filter(split=SplitName.HELDOUT).exists():
        raise _invalid("suite", f"{suite} has no held-out tasks, so nothing trained on it could ever be promoted")
    if not ready_tasks(suite, Split.TRAIN).exists():
        raise _invalid("suite", f"{suite} has no usable train task: see why its tasks are quarantined")
    return suite


def _policy(project: Project, slug: str) -> Policy:
    policy = Policy.objects.select_related("base_model").filter(project=project, slug=slug).first()
    if policy is not None:
        return policy
    known = list(Policy.objects.filter(project=project).order_by("slug").values_list("slug", flat=True)[:_MAX_LISTED])
    names = f"known are {', '.join(known)}" if known else "the project has none yet: create one first"
    raise _invalid("policy", f"there is no policy {slug!r} in project {project.slug}; {names}")


def _invalid(path: str, message: str) -> Problem:
    return Problem("invalid_run_spec", 422, f"{path}: {message}", [{"path": path, "message": message}])
