"""Routes that take weights over a process group, as SGLang has them: group, begin, buckets, end.

What comes is collected and checked while generation goes on, and swapped in at the end, all of it or nothing.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial

import msgspec
import torch
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gpu_workers.engines import update_group
from gpu_workers.engines.collective import FLATTENED
from gpu_workers.engines.embedded.config import EngineConfigError
from gpu_workers.engines.embedded.control import quiesce
from gpu_workers.engines.embedded.engine import Engine, EngineBusyError
from gpu_workers.engines.embedded.http import Json, read_body
from gpu_workers.engines.embedded.model import Model
from gpu_workers.engines.embedded.request import RequestError
from gpu_workers.engines.embedded.weights import expected_shapes
from gpu_workers.engines.update_group import GroupError, UpdateGroup

# Of the meeting and of each bucket. SGLang waits for 30 minutes.
GROUP_SECONDS = 120.0


class InitGroupBody(msgspec.Struct, kw_only=True):
    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    group_name: str = "weight_update_group"
    backend: str = "nccl"


class DestroyGroupBody(msgspec.Struct, kw_only=True):
    group_name: str = "weight_update_group"


class BeginBody(msgspec.Struct, kw_only=True):
    selector: str = "all"
    discard: bool = False  # what an open session has collected; SGLang has loaded it by then and knows no such field


class UpdateBody(msgspec.Struct, kw_only=True):
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    group_name: str = "weight_update_group"
    flush_cache: bool = True
    abort_all_requests: bool = False
    weight_version: str | None = None
    load_format: str | None = None


@dataclass
class Session:
    """What has come since begin; `flush` when a bucket asked for it; `model` as soon as all of it has come."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    model: Model | None = None
    weight_version: str | None = None
    flush: bool = False
    failure: str = ""


@dataclass
class Updates:
    """Groups by name, and the open session."""

    groups: dict[str, UpdateGroup] = field(default_factory=dict)
    session: Session | None = None


class _RefusedError(Exception):
    """Answered with 400 and this message."""


def _answer(success: bool, message: str) -> Json:
    return Json({"success": success, "message": message}, status_code=200 if success else 400)


@contextlib.asynccontextmanager
async def _updating(http: HttpRequest) -> AsyncIterator[tuple[Engine, Updates]]:
    """One call at a time, as in SGLang's scheduler."""
    async with http.app.state.weights_lock:
        yield http.app.state.engine, http.app.state.updates


async def init_weights_update_group(http: HttpRequest) -> Response:
    """Answers when every rank has come."""
    body = await read_body(http, InitGroupBody)
    if not body.group_name:
        raise RequestError("group_name is empty")
    async with _updating(http) as (_, updates):
        try:
            updates.groups[body.group_name] = await asyncio.to_thread(
                update_group.join,
                address=body.master_address,
                port=body.master_port,
                rank=body.rank_offset,
                world_size=body.world_size,
                name=body.group_name,
                backend=body.backend,
                timeout_seconds=GROUP_SECONDS,
            )
        except GroupError as error:
            return _answer(False, f"Failed to initialize custom process group: {error}.")
    return _answer(True, "Succeeded to initialize custom process group.")


async def destroy_weights_update_group(http: HttpRequest) -> Response:
    body = await read_body(http, DestroyGroupBody)
    async with _updating(http) as (_, updates):
        group = updates.groups.pop(body.group_name, None)
        if group is None:
            return _answer(False, "The group to be destroyed does not exist.")
        await asyncio.to_thread(group.leave)
    return _answer(True, "Succeeded to destroy custom process group.")


async def begin_weight_update(http: HttpRequest) -> Response:
    body = await read_body(http, BeginBody)
    async with _updating(http) as (_, updates):
        if updates.session is not None and not body.discard:
            return _answer(False, "a weight-update session is already open; call end_weight_update() first")
        updates.session = Session()
    return _answer(True, "Success")


async def update_weights_from_distributed(http: HttpRequest) -> Response:
    """Receive one bucket; with the last, pack the model. After a failure ending the session changes nothing."""
    body = await read_body(http, UpdateBody)
    async with _updating(http) as (engine, updates):
        session = updates.session
        if session is None:
            return _answer(
                False,
                "update_weights_from_distributed must run between begin_weight_update() and end_weight_update()",
            )
        if body.abort_all_requests:
            await asyncio.wrap_future(engine.call(lambda: engine.abort("", True, "aborted by a weight update")))
        try:
            tensors = await asyncio.to_thread(_receive, updates, body)
            _check(engine, tensors)
            await _collect(engine, session, tensors)
        except (GroupError, EngineConfigError, _RefusedError) as error:
            session.failure = str(error)
            return _answer(False, session.failure)
        session.flush |= body.flush_cache
        message = "Succeeded to update parameter online."
        if body.weight_version is not None:
            session.weight_version = body.weight_version
            message += f" Weight version updated to {body.weight_version}."
    return _answer(True, message)


def _receive(updates: Updates, body: UpdateBody) -> dict[str, torch.Tensor]:
    group = updates.groups.get(body.group_name)
    if group is None:
        raise _RefusedError(
            f"Failed to receive weights: Group {body.group_name} not in {list(updates.groups)}. "
            "Please call `init_weights_update_group` first."
        )
    if not body.names or not len(body.names) == len(body.dtypes) == len(body.shapes):
        raise _RefusedError(
            f"Failed to receive weights: {len(body.names)} names, {len(body.dtypes)} dtypes and "
            f"{len(body.shapes)} shapes; all three must be given, and for the same tensors"
        )
    try:
        if body.load_format == FLATTENED:
            flat = torch.empty(update_group.num_bytes_of(body.dtypes, body.shapes), dtype=torch.uint8)
            received = update_group.views(flat, body.dtypes, body.shapes)
            group.broadcast(flat)
        elif body.load_format is None:
            received = [
                torch.empty(s, dtype=update_group.dtype_of(d)) for d, s in zip(body.dtypes, body.shapes, strict=True)
            ]
            for tensor in received:
                group.broadcast(tensor)
        else:
            raise _RefusedError(f"load_format {body.load_format!r} is unknown; leave it out or use {FLATTENED}")
    except GroupError as error:
        raise _RefusedError(f"Failed to receive weights: {error}") from error
    return dict(zip(body.names, received, strict=True))


def _check(engine: Engine, tensors: dict[str, torch.Tensor]) -> None:
    """Names and shapes against the served model's. A head that is tied to the embedding may come and is not used."""
    expected = expected_shapes(engine.config)
    for name, tensor in tensors.items():
        if name == "lm_head.weight" and engine.config.tied_embeddings:
            continue
        problem = ""
        if name not in expected:
            problem = f"the model has no tensor {name}"
        elif tuple(tensor.shape) != expected[name]:
            problem = f"tensor {name} has shape {tuple(tensor.shape)}, the model's is {expected[name]}"
        elif not tensor.is_floating_point():
            problem = f"tensor {name} has dtype {tensor.dtype}, weights are floating-point numbers"
        if problem:
            raise _RefusedError(f"Failed to update parameter online: {problem}. Nothing was changed.")


async def _collect(engine: Engine, session: Session, tensors: dict[str, torch.Tensor]) -> None:
    """Packed once all have come, so that ending the session only swaps. Raises EngineConfigError."""
    expected = expected_shapes(engine.config).keys()
    session.tensors |= tensors
    if expected & tensors.keys():
        session.model = None
    if session.model is None and expected <= session.tensors.keys():
        session.model = await asyncio.to_thread(engine.pack_model, session.tensors)


async def end_weight_update(http: HttpRequest) -> Response:
    """Swap in what was collected, and close the session whatever comes of it."""
    async with _updating(http) as (engine, updates):
        session, updates.session = updates.session, None
        if session is None:
            return _answer(False, "no weight-update session is open; call begin_weight_update() first")
        try:
            await _swap(engine, session)
        except (EngineConfigError, EngineBusyError, _RefusedError) as error:
            return _answer(False, f"{error}; the old weights are still in force")
    return _answer(True, "Success")


async def _swap(engine: Engine, session: Session) -> None:
    if session.failure:
        raise _RefusedError(f"a bucket of this update failed ({session.failure.rstrip('.')})")
    if not session.tensors:
        return
    if (model := session.model) is None:
        model = await asyncio.to_thread(engine.pack_model, session.tensors)
    try:
        await quiesce(engine, abort_all=False)
        swap = partial(engine.replace_model, model, session.weight_version, session.flush)
        await asyncio.wrap_future(engine.call(swap))
    finally:
        engine.draining = False
        engine.call(lambda: None)  # wakes the thread
