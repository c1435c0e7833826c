"""Wire types of a verifier measurement: candidates of some tasks, judged by the verifier and by a stronger check."""

import msgspec

from gpu_workers.contracts.tasks import VerifierSpec

CHECK_VERSION = 1  # of mutation operators and the stronger check: what was measured with another one is measured again


class MeasureItem(msgspec.Struct, frozen=True, kw_only=True):
    """One task: `num_mutants` of its reference are judged; or, where there are `answers`, these.

    With answers `verifier` is measured, in the place of the task's own, and the task's own verifier is the truth.
    """

    task_id: str
    task: str  # object key of the TaskBundle
    num_mutants: int = 0
    answers: list[str] = []
    verifier: VerifierSpec | None = None


class MeasureJob(msgspec.Struct, frozen=True, kw_only=True):
    """Measure a verifier on some tasks of a suite. `num_inputs`: inputs of the stronger check, at most, a task."""

    job_id: str
    measurement_id: str
    items: list[MeasureItem]
    seed: int = 0
    num_inputs: int = 150


class CandidateOutcome(msgspec.Struct, kw_only=True):
    """One candidate. `truth`: right | wrong | undecided by the stronger check; `difference` says how it is wrong:
    value | type | exception | timeout | verdict. `input`, `expected`, `got` are of the first difference, cut;
    of an answer, itself and what its task's own verifier says."""

    number: int
    origin: str  # mutation operator, or where an answer comes from
    line: int = 0  # of the reference, from 1; 0: none
    text: str  # the program or the answer
    verdict: str
    reason_code: str = ""
    message: str = ""
    truth: str
    difference: str = ""
    num_inputs: int = 0  # compared
    num_different: int = 0  # of them with another answer, by value or by type
    input: str = ""
    expected: str = ""
    got: str = ""


class TaskMeasured(msgspec.Struct, kw_only=True):
    """`error`: the task was not measured. `num_inputs`: valid for the reference; `num_refused`: it raised on those."""

    task_id: str
    outcomes: list[CandidateOutcome] = []
    verifier_hash: str = ""  # of the verifier that was measured
    num_possible: int = 0  # mutants that there are
    num_inputs: int = 0
    num_refused: int = 0
    error: str = ""


class TasksMeasured(msgspec.Struct, kw_only=True):
    """kind "measured"."""

    job_id: str
    measurement_id: str
    tasks: list[TaskMeasured] = []
