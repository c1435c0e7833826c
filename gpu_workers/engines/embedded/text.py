"""Text of token ids, and the stop conditions of a request."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from gpu_workers.engines.embedded.config import EngineConfigError
from gpu_workers.engines.embedded.request import Request

# A stop string is looked for in the last tokens only: as many as it has bytes, and some more.
_STOP_SLACK_TOKENS = 4


class Text:
    """Encodes, decodes and finds stops."""

    def __init__(self, folder: Path, eos_ids: frozenset[int]) -> None:
        try:
            self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises bare Exception
            raise EngineConfigError(f"cannot read {folder / 'tokenizer.json'}: {error}") from error
        self.eos_ids = eos_ids

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text).ids)

    def output(self, request: Request) -> str:
        """Generated text; a matched stop string (and what follows it) is cut unless no_stop_trim."""
        text = str(self.tokenizer.decode(request.output_ids, skip_special_tokens=request.params.skip_special_tokens))
        matched = (request.finish_reason or {}).get("matched")
        if isinstance(matched, str) and not request.params.no_stop_trim:
            position = text.find(matched)
            return text[:position] if position >= 0 else text
        return text

    def finish_reason(self, request: Request, context_length: int) -> dict[str, Any] | None:
        """Why the request ends after its newest token, or None."""
        params, num_output = request.params, len(request.output_ids)
        if num_output >= params.min_new_tokens:
            last = request.output_ids[-1]
            if last in params.stop_token_ids or (last in self.eos_ids and not params.ignore_eos):
                return {"type": "stop", "matched": last}
            if params.stop and (matched := self._matched_stop(request)):
                return {"type": "stop", "matched": matched}
        if num_output >= params.max_new_tokens or request.num_tokens >= context_length:
            return {"type": "length", "length": num_output}
        if request.matcher is not None and request.matcher.is_terminated:
            return {"type": "stop", "matched": request.output_ids[-1]}
        return None

    def _matched_stop(self, request: Request) -> str | None:
        window = max(len(stop.encode()) for stop in request.params.stop) + _STOP_SLACK_TOKENS
        tail = self.tokenizer.decode(request.output_ids[-window:], skip_special_tokens=False)
        return next((stop for stop in request.params.stop if stop in tail), None)
