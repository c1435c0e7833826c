"""Which base weights sampled a result: versions are named like adapters, `run-<id>.a<attempt>@v<number>`."""

from dataclasses import replace

from gpu_workers.contracts.checkpoints import read_name
from gpu_workers.contracts.seams import GenerateRequest, GenerateResult
from gpu_workers.engines.http import EngineError

_MARK = "@v"


def is_served(weights: str, wanted: str) -> bool:
    """Whether tokens of `weights` may stand in an answer that was asked of `wanted`: the same, or a later version.

    Later, because an update may come while a request runs, also from an attempt that resumed the run; never an earlier
    one, nor another run's, nor the weights that an engine has after a restart.
    """
    found, asked = read_name(weights), read_name(wanted)
    if found is None or asked is None or found.run_id != asked.run_id:
        return weights == wanted
    later = found.version - asked.version
    if found.attempt == asked.attempt:
        return later >= 0
    return found.attempt > asked.attempt and later > 0


def check_versions(result: GenerateResult, request: GenerateRequest) -> GenerateResult:
    """The result with plain numbers in its spans where `request.weights` asks for a version.

    Raises EngineError when a token is from weights that it does not allow, or when the engine does not say.
    """
    if not request.weights or not result.output_ids:
        return result
    covered = [index for span in result.spans for index in range(span.start, span.stop)]
    if covered != list(range(len(result.output_ids))):
        raise EngineError(f"the engine does not say which weights each of {len(result.output_ids)} tokens is from")
    for span in result.spans:
        if not is_served(span.version, request.weights):
            raise EngineError(
                f"tokens {span.start} to {span.stop} are from weights {span.version!r}, not {request.weights!r}: "
                "was the engine restarted?"
            )
    return replace(result, spans=[replace(s, version=s.version.rpartition(_MARK)[2]) for s in result.spans])
