"""Checkpoints in the object store: where they lie, what is in the folder of one, and what its version is called.

runs/<run>/a<attempt>/v<NNNNNN>/   the folder of one policy version, by the attempt that made it
    adapter/        PEFT folder as engines load it, with its own manifest.json (name, version, sha256, base)
    model/          instead, where every weight is trained: a Hugging Face folder, or what changed in it
    state/          master weights and Adam moments in float32, a file a rank, and trainer.json
    manifest.json   written last: SHA-256 of every file; without it the folder does not count
"""

import re
from dataclasses import dataclass

import msgspec

MANIFEST = "manifest.json"
ADAPTER = "adapter"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
MODEL = "model"
STATE = "state"
TRAINER = "trainer.json"
FORMAT_VERSION = 2

_KEY = re.compile(r"runs/[^/]+/a(?P<attempt>[0-9]+)/v(?P<version>[0-9]+)")
_NAME = re.compile(r"run-(?P<run>.+)\.a(?P<attempt>[0-9]+)@v(?P<version>[0-9]+)")


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint belongs to."""

    run_id: str
    attempt: int
    version: int
    spec_hash: str
    base_fingerprint: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """manifest.json of the folder; `files` maps relative path to SHA-256, `digest` is that of all the rest of it."""

    format: int
    identity: Identity
    files: dict[str, str]
    digest: str = ""  # empty: written before there was one


@dataclass(frozen=True)
class VersionName:
    """The parts of a version's name."""

    run_id: str
    attempt: int
    version: int


def attempt_key(run_id: str, attempt: int) -> str:
    """Object key of the folder that an attempt writes to."""
    return f"runs/{run_id}/a{attempt}"


def version_key(run_id: str, attempt: int, version: int) -> str:
    """Object key of a version's folder."""
    return f"{attempt_key(run_id, attempt)}/v{version:06d}"


def read_key(key: str) -> tuple[int, int] | None:
    """Attempt and version of a version's folder; None for another key."""
    found = _KEY.fullmatch(key)
    return (int(found["attempt"]), int(found["version"])) if found else None


def version_name(run_id: str, attempt: int, version: int) -> str:
    """Name of a policy version on the engines; carries the attempt, so a zombie's weights are never taken for it."""
    return f"run-{run_id}.a{attempt}@v{version}"


def read_name(name: str) -> VersionName | None:
    """None for what is no run's version."""
    found = _NAME.fullmatch(name)
    return VersionName(found["run"], int(found["attempt"]), int(found["version"])) if found else None
