"""Sums over loss tokens that add up over micro-batches, ranks and updates."""

from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True)
class Sums:
    """Base of frozen dataclasses of numbers: `+` adds every field, but takes the larger of those named max_…"""

    def __add__(self, other: Self) -> Self:
        added = {}
        for name in (field.name for field in fields(self)):
            left, right = getattr(self, name), getattr(other, name)
            added[name] = max(left, right) if name.startswith("max_") else left + right
        return type(self)(**added)
