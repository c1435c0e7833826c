"""Whatever a tensor's dtype, shape and change: the rebuilt file is the published one, byte for byte."""

import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import save_file

from gpu_workers.weights.delta.apply import open_step, rebuild
from gpu_workers.weights.delta.codec import Change, CodecError, Encoding, apply_change, encode_change
from gpu_workers.weights.delta.encode import checksums_of, write_delta
from gpu_workers.weights.delta.layout import open_weights
from gpu_workers.weights.delta.manifest import Delta, VersionManifest, checksum, digest_of

DTYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int64,
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]  # fmt: skip
SHAPES = [(), (0,), (3, 0), (1,), (7,), (5, 13), (2, 3, 4), (300, 17)]
CHANGES = ["same", "one", "some", "most", "all", "other form", "other dtype", "dropped", "added"]


def random_tensor(random: np.random.Generator, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Any bits at all: NaNs with payloads, infinities, denormals, negative zeros."""
    count = int(np.prod(shape, dtype=np.int64))
    if not count:
        return torch.empty(shape, dtype=dtype)
    if dtype is torch.bool:
        return torch.from_numpy(random.integers(0, 2, count).astype(bool)).reshape(shape)
    data = random.integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(data).view(dtype).reshape(shape)


def change(random: np.random.Generator, tensor: torch.Tensor, how: str) -> torch.Tensor | None:
    if how == "dropped":
        return None
    if how == "other form":
        return random_tensor(random, tensor.dtype, (*tensor.shape, 2))
    if how == "other dtype":
        return random_tensor(
            random, torch.int16 if tensor.dtype is not torch.int16 else torch.int32, tuple(tensor.shape)
        )
    if not tensor.numel():
        return tensor
    share = {"same": 0.0, "one": 0.0, "some": 0.02, "most": 0.7, "all": 1.0}.get(how, 0.0)
    flat, other = tensor.clone().reshape(-1), random_tensor(random, tensor.dtype, tuple(tensor.shape)).reshape(-1)
    mask = torch.from_numpy(random.random(flat.numel()) < share)
    if how == "one":
        mask[int(random.integers(flat.numel()))] = True
    size = tensor.dtype.itemsize
    mixed = torch.where(mask.repeat_interleave(size), other.view(torch.uint8), flat.view(torch.uint8))
    return mixed.view(tensor.dtype).reshape(tensor.shape)


def manifest_of(path: Path, version: int, delta: Delta | None = None) -> VersionManifest:
    file = open_weights(path)
    checksums = checksums_of(file)
    return VersionManifest(
        format=1, name=f"v{version}", version=version, sha256="", base_fingerprint="", checksums=checksums,
        result_digest=digest_of(checksums), header_checksum=checksum(file.header), num_bytes=len(file.data),
        num_words=file.num_words, files={}, stored=[], snapshot=delta is None, delta=delta,
    )  # fmt: skip


def made_delta(base: Path, new: Path, version: int) -> tuple[VersionManifest, Path]:
    target = new.with_name(f"delta-{version}")
    written = write_delta(open_weights(base), open_weights(new), target)
    delta = Delta(
        base_uri="", base_version=version - 1, base_digest="", sha256=written.sha256, num_bytes=written.num_bytes,
        num_changed=written.num_changed, changed=written.changed, new_header=written.new_header,
    )  # fmt: skip
    return manifest_of(new, version, delta), target


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    kinds=st.lists(st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES)), min_size=1, max_size=5),
    changes=st.lists(st.lists(st.sampled_from(CHANGES), min_size=5, max_size=5), min_size=1, max_size=3),
)
def test_any_chain_of_changes_is_rebuilt_byte_for_byte(seed, kinds, changes):
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tensors = {f"t{index}.weight": random_tensor(random, *kind) for index, kind in enumerate(kinds)}
        save_file(tensors, folder / "v0", metadata={"format": "pt"})
        steps = []
        for version, hows in enumerate(changes, 1):
            for index, (kind, how) in enumerate(zip(kinds, hows, strict=False)):
                key = f"t{index}.weight"
                if key not in tensors or how == "added":
                    tensors[f"{key}{'+' if how == 'added' else ''}"] = random_tensor(random, *kind)
                    continue
                found = change(random, tensors.pop(key), how)
                if found is not None:
                    tensors[key] = found
            save_file(tensors, folder / f"v{version}", metadata={"format": "pt", "version": str(version // 2)})
            told, delta = made_delta(folder / f"v{version - 1}", folder / f"v{version}", version)
            steps.append(open_step(told, delta))
        with (folder / "rebuilt").open("wb") as out:
            rebuild(open_weights(folder / "v0"), manifest_of(folder / "v0", 0), steps, out)
        assert (folder / "rebuilt").read_bytes() == (folder / f"v{len(changes)}").read_bytes()


def as_bytes(values: list[int], dtype: type = np.uint16) -> np.ndarray:
    return np.array(values, dtype).view(np.uint8)


def test_gaps_and_values_of_a_sparse_change():
    random = np.random.default_rng(1)
    old = random.integers(0, 2**16, 30_000).astype(np.uint16)
    new, places = old.copy(), [0, 1, 258, *range(600, 29_000, 400), 29_999]
    new[places] ^= random.integers(1, 2**16, len(places)).astype(np.uint16)
    found = encode_change(old.view(np.uint8), new.view(np.uint8), 2)
    assert found is not None
    assert (found.encoding, found.num_changed, found.gap_bytes) == (Encoding.SPARSE, len(places), 2)  # gaps above 255
    once = apply_change(old.copy().view(np.uint8), found, 60_000, 2)
    assert once.tobytes() == new.tobytes()
    assert apply_change(once, found, 60_000, 2).tobytes() == new.tobytes(), "idempotent"


def test_nothing_is_written_for_a_tensor_that_did_not_change():
    data = as_bytes([1, 2, 3])
    assert encode_change(data, data.copy(), 2) is None


def test_the_smallest_encoding_is_taken():
    random = np.random.default_rng(0)
    old = random.integers(0, 2**16, 20_000).astype(np.uint16)
    flipped, few, other = old ^ np.uint16(1), old.copy(), random.integers(0, 2**16, 20_000).astype(np.uint16)
    few[::500] += 1
    plain = np.full(20_000, 5, np.uint16)
    found = [encode_change(old.view(np.uint8), new.view(np.uint8), 2) for new in (few, flipped, other, plain)]
    kinds = [change.encoding for change in found if change]
    assert kinds[0] is Encoding.SPARSE
    assert kinds[1] is Encoding.XOR
    assert kinds[2] in (Encoding.FULL, Encoding.XOR)
    assert kinds[3] is Encoding.FULL
    for new, change in zip((few, flipped, other, plain), found, strict=True):
        assert change is not None
        assert apply_change(old.copy().view(np.uint8), change, 40_000, 2).tobytes() == new.tobytes()


@pytest.mark.parametrize("spoil", ["torn", "longer", "outside", "no frame"])
def test_a_change_that_is_not_of_this_tensor_is_refused(spoil):
    old, new = as_bytes([1] * 100), as_bytes([1] * 100)
    new.view(np.uint16)[[3, 90]] = 5
    found = encode_change(old, new, 2)
    assert found is not None
    parts, count, size = dict(found.parts), found.num_changed, len(new)
    if spoil == "torn":
        parts["values"] = parts["values"][:-2]
    elif spoil == "longer":
        count += 1
    elif spoil == "outside":
        old, size = old[:100], 100
    else:
        parts["gaps"] = b"not zstd"
    with pytest.raises(CodecError):
        apply_change(old.copy(), Change(found.encoding, count, found.gap_bytes, parts), size, 2)
