"""Whether an engine serves a version already: by what was confirmed on it last, else by the folder that it read."""

from pathlib import Path

import msgspec

from gpu_workers.contracts.messages import AdapterInstall
from gpu_workers.contracts.seams import EngineInfo
from gpu_workers.models.folder import WEIGHTS, file_sha256
from gpu_workers.weights.delta.manifest import MANIFEST

STARTED = "default"  # SGLang's name of the weights that an engine was started with


class Serving(msgspec.Struct, frozen=True):
    """An engine's own word: the folder that it read last, and the name of its weights, wherever those came from."""

    path: str
    version: str


class _Told(msgspec.Struct):
    """What the manifest of any transfer says of the weights beside it."""

    name: str = ""
    sha256: str = ""


_confirmed: dict[str, AdapterInstall] = {}  # engine URL -> what was put there last and found to be there


def serving_of(info: EngineInfo) -> Serving:
    return Serving(info.model_path, info.weight_version)


def note_confirmed(url: str, item: AdapterInstall) -> None:
    """The engine was read back, and samples from these weights."""
    _confirmed[url] = item


def note_replacing(url: str) -> None:
    """Nothing is known of the engine's weights until the next confirmation."""
    _confirmed.pop(url, None)


def is_confirmed(url: str, info: EngineInfo, item: AdapterInstall) -> bool:
    """Whether the engine says that it has this version, and was found to have it."""
    last = _confirmed.get(url)
    return (
        info.weight_version == item.name and last is not None and (last.name, last.sha256) == (item.name, item.sha256)
    )


def same_bytes_confirmed(url: str, info: EngineInfo, sha256: str) -> bool | None:
    """Whether what was confirmed on the engine, and is there by its word, has these bytes; None when nothing was."""
    last = _confirmed.get(url)
    return last.sha256 == sha256 if last is not None and last.name == info.weight_version else None


def same_bytes_in(serving: Serving, sha256: str) -> bool | None:
    """The same by the engine's folder, on the host that has it; None where it does not tell. May read the whole file.

    A folder tells only of the weights that were read from it: of the version that it was published as, or of what an
    engine was started with. What came over a network since is not in it.
    """
    folder = Path(serving.path)
    try:
        told = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=_Told)
    except FileNotFoundError:
        told = _Told()
    except (OSError, msgspec.DecodeError):
        return None
    if serving.version not in (STARTED, told.name):
        return None
    if told.sha256:
        return told.sha256 == sha256
    try:
        return file_sha256(folder / WEIGHTS) == sha256
    except OSError:
        return None
