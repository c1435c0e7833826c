"""What every suite states about itself, whatever it was built from."""

from dataclasses import dataclass

from gpu_workers.contracts.enums import Split, VerifierKind
from gpu_workers.contracts.tasks import TaskBundle


@dataclass(frozen=True)
class FailureMode:
    """A reason code and what it means in this suite."""

    code: str
    meaning: str


@dataclass(frozen=True)
class SuiteDefinition:
    """`distribution` says in words which tasks these are and how the splits are kept apart."""

    slug: str
    title: str
    description: str
    distribution: str
    failure_modes: tuple[FailureMode, ...]
    verifier_kind: VerifierKind
    verifier_version: int = 1
    tags: tuple[str, ...] = ()
    audit_kind: VerifierKind | None = None  # of a stronger verifier beside it, never a reward
    audit_version: int = 1


SuiteTask = tuple[Split, TaskBundle]
Suite = tuple[SuiteDefinition, list[SuiteTask]]
