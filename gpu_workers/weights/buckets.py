"""The tensors of a weights file as they are broadcast: checked against the base model's, and put into buckets."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from gpu_workers.contracts.seams import Bucket
from gpu_workers.weights.adapter import InstallError
from gpu_workers.weights.delta.layout import LayoutError, TensorSpan, WeightsFile, open_weights

BUCKET_BYTES = 256 * 2**20
# safetensors' names of what torch calls otherwise
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}

Spans = Mapping[str, TensorSpan]


def open_file(path: Path) -> WeightsFile:
    """Raises InstallError when it cannot be read, is torn, or holds what cannot be sent."""
    try:
        file = open_weights(path)
    except (LayoutError, OSError) as error:
        raise InstallError(f"{path} cannot be read: {error}") from error
    odd = next((span for span in file.spans.values() if span.dtype not in _DTYPES), None)
    if odd is not None:
        raise InstallError(f"{path}: tensor {odd.name} has dtype {odd.dtype}, which cannot be broadcast; use full")
    return file


def check_same_layout(what: str, ours: Spans, base: Spans) -> None:
    """Raises InstallError when names, dtypes or shapes are not those of the base model.

    An engine would not always say: SGLang passes over a name that its model does not have.
    """
    missing, unknown = sorted(base.keys() - ours.keys()), sorted(ours.keys() - base.keys())
    if missing or unknown:
        parts = [f"{verb} {', '.join(names[:3])}" for verb, names in (("lack", missing), ("add", unknown)) if names]
        problem = " and ".join(parts)
    else:
        other = next((name for name in ours if ours[name].form != base[name].form), "")
        problem = f"have {other} as {_said(ours[other])} instead of {_said(base[other])}" if other else ""
    if problem:
        raise InstallError(f"{what} are not weights of the base model: they {problem}; refused")


def _said(span: TensorSpan) -> str:
    return f"{_DTYPES[span.dtype]}{list(span.shape)}"


def plan_buckets(spans: Spans, bucket_bytes: int = BUCKET_BYTES) -> list[Bucket]:
    """All tensors, each once; a bucket exceeds the bound only to hold one tensor that does.

    Wide elements first, so that each tensor lies at a multiple of its element's size.
    """
    ordered = sorted(spans.values(), key=lambda span: (-span.word_bytes, span.start))
    return [_bucket(group) for group in _grouped(ordered, bucket_bytes)]


def _grouped(spans: list[TensorSpan], bucket_bytes: int) -> Iterator[list[TensorSpan]]:
    group, size = list[TensorSpan](), 0
    for span in spans:
        if group and size + span.num_bytes > bucket_bytes:
            yield group
            group, size = [], 0
        group.append(span)
        size += span.num_bytes
    if group:
        yield group


def _bucket(spans: list[TensorSpan]) -> Bucket:
    return Bucket(
        names=tuple(span.name for span in spans),
        dtypes=tuple(_DTYPES[span.dtype] for span in spans),
        shapes=tuple(span.shape for span in spans),
        num_bytes=sum(span.num_bytes for span in spans),
    )
