"""What a person declares of a suite whose tasks come from elsewhere: one TOML text or JSON object, read strictly."""

import random
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from apps.tasks.suites.definition import FailureMode, SuiteDefinition
from apps.tasks.suites.errors import SuiteError, SuiteProblem
from gpu_workers.contracts.enums import ReasonCode, Split, VerifierKind

MAX_BYTES = 256 * 2**10


class DeclaredMode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    code: ReasonCode
    meaning: str


class Splits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How tasks are parted: drawn by the seed in these shares, the rest is train; named ones go where they are put."""

    heldout: float = 0.35
    dev: float = 0.1
    regression: float = 0.05
    seed: int = 1
    tasks: dict[str, Split] = {}  # task key -> split

    def draw(self, keys: Sequence[str]) -> dict[str, Split]:
        """A split for every key. At least one task is held out."""
        names = sorted(key for key in keys if key not in self.tasks)
        random.Random(f"splits {self.seed}").shuffle(names)
        found = {key: self.tasks[key] for key in keys if key in self.tasks}
        start = 0
        for split, share in ((Split.HELDOUT, self.heldout), (Split.DEV, self.dev), (Split.REGRESSION, self.regression)):
            least = 1 if split is Split.HELDOUT and Split.HELDOUT not in found.values() else 0
            size = max(least, round(share * len(names)))
            found |= dict.fromkeys(names[start : start + size], split)
            start += size
        return found | dict.fromkeys(names[start:], Split.TRAIN)


class Declaration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Beside what every suite declares: how tasks are parted."""

    slug: str
    title: str
    distribution: str
    failure_modes: list[DeclaredMode]
    description: str = ""
    licence: str = ""
    tags: list[str] = []
    splits: Splits = Splits()

    def define(self, kind: VerifierKind) -> SuiteDefinition:
        return SuiteDefinition(
            slug=self.slug,
            title=self.title,
            description=self.description,
            distribution=self.distribution,
            failure_modes=tuple(FailureMode(mode.code, mode.meaning) for mode in self.failure_modes),
            verifier_kind=kind,
            tags=tuple(self.tags),
        )


def convert(data: Mapping[str, Any], kind: type[Any]) -> Any:
    """The declaration in plain data. Raises SuiteError naming the field."""
    try:
        declared = msgspec.convert(dict(data), kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise SuiteError.single(path.rstrip("`").strip("."), message) from error
    splits = declared.splits
    shares = (splits.heldout, splits.dev, splits.regression)
    if not all(0 <= share <= 1 for share in shares) or sum(shares) > 1 or splits.heldout <= 0:
        message = (
            "heldout, dev and regression are shares of the tasks: at least 0, heldout above it, together at most 1"
        )
        raise SuiteError([SuiteProblem(0, "splits", message)])
    return declared


def read_toml(path: Path, kind: type[Any]) -> Any:
    """As convert, from a file."""
    try:
        data = path.read_bytes()
        if len(data) > MAX_BYTES:
            raise SuiteError.single(path.name, f"has {len(data)} bytes, {MAX_BYTES} are allowed")
        return convert(tomllib.loads(data.decode()), kind)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SuiteError.single(path.name, f"cannot be read: {error}") from error
