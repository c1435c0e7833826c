"""Which verifier judges a task."""

from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.contracts.seams import SandboxBackend, Verifier
from gpu_workers.contracts.tasks import VerifierSpec
from gpu_workers.verifiers.exact import ExactVerifier
from gpu_workers.verifiers.number import NumberVerifier
from gpu_workers.verifiers.program import ProgramVerifier
from gpu_workers.verifiers.tool_call import ToolCallVerifier


def get_verifier(spec: VerifierSpec, sandbox_backend: SandboxBackend) -> Verifier:
    """The verifier of a task. Raises results.TaskError when its spec cannot be used."""
    match spec.kind:
        case VerifierKind.EXACT:
            return ExactVerifier(spec)
        case VerifierKind.NUMBER:
            return NumberVerifier(spec)
        case VerifierKind.TOOL_CALL:
            return ToolCallVerifier(spec)
        case VerifierKind.PROGRAM:
            return ProgramVerifier(spec, sandbox_backend)
