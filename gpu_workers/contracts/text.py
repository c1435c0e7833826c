"""Text that every store takes: what programs and models write may hold characters that none does."""

from collections.abc import Mapping
from typing import Any


def storable(value: Any) -> Any:
    """The value without NUL characters and lone surrogates, which JSON documents and databases refuse."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode(errors="replace").decode()
    if isinstance(value, Mapping):
        return {storable(key): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return value
