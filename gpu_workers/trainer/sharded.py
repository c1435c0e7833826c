"""Sharded state on disk: torch.distributed.checkpoint in safetensors files, one a rank, read at any number of ranks.

The safetensors form of DCP keeps each shard's place in the file's header. It holds no pickle: a checkpoint comes from a
shared store.
"""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException, HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from gpu_workers.trainer.world import World

FILE_BYTES = 256 << 20


class ShardError(RuntimeError):
    """Sharded state that cannot be read into these tensors."""


def save_sharded(folder: Path, tensors: dict[str, Tensor], world: World) -> None:
    """Write this rank's shards; collective. Every rank may be given a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=_files(tensors), save_distributed=True)
    with _alone_is_meant():
        dcp.save({n: value.detach() for n, value in tensors.items()}, storage_writer=writer, no_dist=world.size == 1)
    for file in folder.glob(f"shard-{world.rank + 1:05d}-*.safetensors"):
        _order_header(file)


def _files(tensors: dict[str, Tensor]) -> dict[str, int]:
    """The number, from 1, of each tensor's file: a file is put together in memory, so none gets much over the bound."""
    numbers, held = {}, 0
    for name, value in tensors.items():
        held += value.numel() * value.element_size()
        numbers[name] = 1 + held // FILE_BYTES
    order = {number: index for index, number in enumerate(sorted(set(numbers.values())), start=1)}
    return {name: order[number] for name, number in numbers.items()}


def _order_header(file: Path) -> None:
    """Sort the keys of the file's JSON header in place: safetensors writes them in an order that varies between runs,
    and equal states should be equal files."""
    with file.open("r+b") as handle:
        size = int.from_bytes(handle.read(8), "little")
        ordered = json.dumps(json.loads(handle.read(size)), sort_keys=True, separators=(",", ":")).encode()
        if len(ordered) <= size:
            handle.seek(8)
            handle.write(ordered.ljust(size))


def load_sharded(folder: Path, into: dict[str, Tensor], world: World) -> None:
    """Read the files of every rank that saved into tensors of any sharding; collective. Raises ShardError."""
    reader = HuggingFaceStorageReader(str(folder))
    try:
        saved = reader.read_metadata().state_dict_metadata
        missing = sorted(into.keys() - saved.keys())
        if missing:
            raise ShardError(f"{folder} does not fit the model: {len(missing)} missing, e.g. {missing[0]}")
        for name, value in into.items():
            found = saved[name]
            if not isinstance(found, TensorStorageMetadata) or found.size != value.shape:
                size = tuple(getattr(found, "size", ()))
                raise ShardError(f"{folder}: {name} is {size}, the model needs {tuple(value.shape)}")
        with _alone_is_meant():
            dcp.load(into, storage_reader=reader, no_dist=world.size == 1)
    except (OSError, SafetensorError, CheckpointException, json.JSONDecodeError, KeyError) as error:
        raise ShardError(f"{folder} cannot be read ({error})") from error


@contextmanager
def _alone_is_meant() -> Iterator[None]:
    """DCP warns that it works without other ranks, where that is what was asked for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*assuming the intent is to (save|load) in a single process")
        yield
