"""Verifier of text: the answer equals one of the accepted texts after normalisation."""

import re
import unicodedata

from gpu_workers.contracts.enums import ReasonCode
from gpu_workers.contracts.seams import FinishedEpisode, VerifierResult
from gpu_workers.contracts.tasks import TaskBundle, VerifierSpec
from gpu_workers.verifiers.extraction import compile_pattern, extract, several_matches
from gpu_workers.verifiers.results import TaskError, VerifierConfig, failed, passed, read_config

MAX_SHOWN = 200


class ExactConfig(VerifierConfig, frozen=True, kw_only=True):
    pattern: str = ""  # regular expression whose last match, its group 1 where it has one, is the answer
    case_sensitive: bool = False


class ExactVerifier:
    """Text equality. White space is collapsed and case ignored unless config `case_sensitive`."""

    def __init__(self, spec: VerifierSpec) -> None:
        config = read_config(spec, ExactConfig)
        self.pattern = compile_pattern(config.pattern)
        self.case_sensitive = config.case_sensitive
        expected = spec.expected if isinstance(spec.expected, list) else [spec.expected]
        if not expected or any(isinstance(e, bool) or not isinstance(e, str | int | float) for e in expected):
            raise TaskError("verifier.expected: must be a text or a non-empty list of texts")
        self.accepted = {self._normalise(str(e)) for e in expected}
        if "" in self.accepted:
            raise TaskError("verifier.expected: an empty text would accept an empty answer")

    async def verify(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
        if not episode.answer.strip():
            return failed(ReasonCode.NO_OUTPUT, "the answer is empty")
        found = extract(episode.answer, self.pattern)
        if found is None:
            return failed(ReasonCode.FORMAT_INVALID, "the answer does not contain the required pattern")
        if offered := several_matches(episode.answer, self.pattern):
            return failed(ReasonCode.FORMAT_INVALID, f"the answer leaves the choice among {', '.join(offered[:10])}")
        if self._normalise(found) in self.accepted:
            return passed()
        evidence = {"expected": sorted(self.accepted)[:10], "got": found[:MAX_SHOWN]}
        return failed(ReasonCode.WRONG_ANSWER, "the answer is not one of the accepted texts", evidence=evidence)

    def _normalise(self, text: str) -> str:
        collapsed = re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).strip()
        return collapsed if self.case_sensitive else collapsed.casefold()
