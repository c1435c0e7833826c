"""Code that is sent into sandboxes as text, and the shape of what it answers: one line of JSON, then the result."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

INSIDE = Path(__file__).parent / "inside"


@lru_cache(maxsize=8)
def shipped(name: str) -> str:
    """Text of a module that runs inside."""
    return (INSIDE / name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def sdk() -> str:
    return Path(__file__).with_name("sdk.py").read_text(encoding="utf-8")


def split_head(text: str) -> tuple[dict[str, Any] | None, str]:
    """The first line as an object, None where it is none, and the rest."""
    line, _, rest = text.partition("\n")
    try:
        head = json.loads(line)
    except (ValueError, RecursionError):
        return None, rest
    return (head if isinstance(head, dict) else None), rest
