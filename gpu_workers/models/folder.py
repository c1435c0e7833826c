"""The model folder: where it lives, what describes it, how it appears whole or not at all."""

import hashlib
import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

DESCRIPTION = "ratchet_model.json"
WEIGHTS = "model.safetensors"
_CHUNK_BYTES = 1 << 20


class ModelError(RuntimeError):
    """A base model that is missing, incomplete or cannot be prepared; says what to do."""


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a base model. `fingerprint` is the SHA-256 of its weights file."""

    name: str
    fingerprint: str
    dtype: str
    context_length: int
    eos_ids: list[int]


def model_folder(home: Path, name: str) -> Path:
    """Where the model `name` lives below the data folder."""
    return home / "models" / name


def file_sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def read_description(folder: Path) -> ModelDescription:
    """Read a folder's description. Raises ModelError when the folder is not a prepared model."""
    try:
        return msgspec.json.decode((folder / DESCRIPTION).read_bytes(), type=ModelDescription)
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(
            f"{folder} is not a prepared model ({error}); run `python -m gpu_workers.models smollm2 --home HOME`"
        ) from error


def describe(folder: Path, name: str) -> ModelDescription:
    """Write the description of the model in `folder` from its config and weights."""
    config = json.loads((folder / "config.json").read_text())
    eos = config.get("eos_token_id")
    description = ModelDescription(
        name=name,
        fingerprint=file_sha256(folder / WEIGHTS),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
        context_length=int(config["max_position_embeddings"]),
        eos_ids=list(eos) if isinstance(eos, list) else [] if eos is None else [int(eos)],
    )
    (folder / DESCRIPTION).write_bytes(msgspec.json.format(msgspec.json.encode(description)))
    return description


def is_complete(folder: Path) -> bool:
    """Whether the folder was prepared to the end: the description is written last and moved in with the rest."""
    return (folder / DESCRIPTION).is_file() and (folder / WEIGHTS).is_file()


@contextmanager
def building(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes `target` on success; another process may win the race."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{target.name}.{uuid.uuid4().hex}"
    temporary.mkdir()
    try:
        yield temporary
        if target.exists() and not is_complete(target):
            shutil.rmtree(target)
        try:
            temporary.replace(target)
        except OSError:
            if not is_complete(target):
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write readable JSON."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
