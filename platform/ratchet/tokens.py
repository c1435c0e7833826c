"""Text of token ids for people, by the tokenizer of a base model below RATCHET_HOME/models."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from django.conf import settings
from tokenizers import Tokenizer


def token_texts(base_model: str, ids: Sequence[int]) -> list[str] | None:
    """One text per token, marks and spaces written out; None where the model's tokenizer is not on this machine."""
    path = Path(settings.RATCHET_HOME) / "models" / base_model / "tokenizer.json"
    if not path.is_file():
        return None
    tokenizer = _load(str(path), path.stat().st_mtime)
    return [tokenizer.decode([token], skip_special_tokens=False) for token in ids]


@lru_cache(maxsize=4)
def _load(path: str, changed: float) -> Tokenizer:
    return Tokenizer.from_file(path)
