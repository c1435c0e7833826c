"""Every kind of verifier: the schema of its settings, and how one is made for a task."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.contracts.seams import SandboxBackend, Verifier
from gpu_workers.contracts.tasks import TaskBundle, VerifierSpec
from gpu_workers.environments.hosted import HostedVerifier
from gpu_workers.environments.process import worker_hosts
from gpu_workers.verifiers.composite import CompositeConfig, CompositeVerifier, Part, read_parts
from gpu_workers.verifiers.equivalence import EquivalenceConfig, EquivalenceVerifier
from gpu_workers.verifiers.exact import ExactConfig, ExactVerifier
from gpu_workers.verifiers.judge import JudgeConfig, JudgeEndpoint, JudgeVerifier
from gpu_workers.verifiers.number import NumberConfig, NumberVerifier
from gpu_workers.verifiers.program import ProgramConfig, ProgramVerifier
from gpu_workers.verifiers.results import TaskError, VerifierConfig, read_config
from gpu_workers.verifiers.runner import VerifierRunner
from gpu_workers.verifiers.script import ScriptConfig, ScriptVerifier
from gpu_workers.verifiers.suite import SuiteConfig, SuiteVerifier
from gpu_workers.verifiers.tool_call import ToolCallConfig, ToolCallVerifier

MAX_DEPTH = 3  # of composites in composites


@dataclass(frozen=True)
class Services:
    """What verifiers stand on: a place for foreign code, and a judge where the operator has set one up."""

    backend: SandboxBackend
    judge: JudgeEndpoint | None = None
    depth: int = field(default=0, repr=False)


@dataclass(frozen=True)
class Kind:
    """`config`: schema of the settings. `make` raises results.TaskError on a spec that cannot be used."""

    config: type[VerifierConfig]
    make: Callable[[VerifierSpec, Services], Verifier]


def _composite(spec: VerifierSpec, services: Services) -> Verifier:
    if services.depth >= MAX_DEPTH:
        raise TaskError(f"verifier.parts: composites may be nested {MAX_DEPTH} deep")
    inner = Services(services.backend, services.judge, services.depth + 1)
    return CompositeVerifier(
        spec, [Part(part.name, part.weight, make_verifier(part.verifier, inner)) for part in read_parts(spec)]
    )


def _hosted(spec: VerifierSpec, _: Services) -> Verifier:
    read_config(spec, VerifierConfig)
    return HostedVerifier(worker_hosts())


KINDS: Mapping[VerifierKind, Kind] = {
    VerifierKind.EXACT: Kind(ExactConfig, lambda spec, _: ExactVerifier(spec)),
    VerifierKind.NUMBER: Kind(NumberConfig, lambda spec, _: NumberVerifier(spec)),
    VerifierKind.TOOL_CALL: Kind(ToolCallConfig, lambda spec, _: ToolCallVerifier(spec)),
    VerifierKind.PROGRAM: Kind(ProgramConfig, lambda spec, services: ProgramVerifier(spec, services.backend)),
    VerifierKind.TESTS: Kind(SuiteConfig, lambda spec, services: SuiteVerifier(spec, services.backend)),
    VerifierKind.SCRIPT: Kind(ScriptConfig, lambda spec, services: ScriptVerifier(spec, services.backend)),
    VerifierKind.COMPOSITE: Kind(CompositeConfig, _composite),
    VerifierKind.EQUIVALENCE: Kind(
        EquivalenceConfig, lambda spec, services: EquivalenceVerifier(spec, services.backend)
    ),
    VerifierKind.ENVIRONMENT: Kind(VerifierConfig, _hosted),
    VerifierKind.JUDGE: Kind(JudgeConfig, lambda spec, services: JudgeVerifier(spec, services.judge)),
}


def make_verifier(spec: VerifierSpec, services: Services) -> VerifierRunner:
    """The verifier of a spec, for the episodes of one group. Raises results.TaskError when it cannot be used."""
    return VerifierRunner(spec, KINDS[spec.kind].make(spec, services), services.backend)


def get_verifier(spec: VerifierSpec, backend: SandboxBackend, judge: JudgeEndpoint | None = None) -> VerifierRunner:
    """As make_verifier."""
    return make_verifier(spec, Services(backend, judge))


def audit_verifier(
    task: TaskBundle, backend: SandboxBackend, judge: JudgeEndpoint | None = None
) -> VerifierRunner | None:
    """The task's audit verifier, where it has one. Raises results.TaskError."""
    return None if task.audit_verifier is None else get_verifier(task.audit_verifier, backend, judge)
