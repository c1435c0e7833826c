"""SGLang's calls that take weights over a process group, in the order in which it wants them."""

from abc import ABC, abstractmethod
from typing import Any

from gpu_workers.contracts.seams import Bucket, GroupAddress
from gpu_workers.engines.http import CONTROL_SECONDS, EngineError

FLATTENED = "flattened_bucket"  # a bucket that is sent as one tensor of bytes
LEAVE_SECONDS = 15.0


class CollectiveCalls(ABC):
    """The part of CollectiveEngine beyond RolloutEngine. Every call raises EngineError with the engine's own reason."""

    url: str

    @abstractmethod
    async def _change(self, path: str, body: dict[str, Any], *, seconds: float = ...) -> None: ...

    @abstractmethod
    async def _read(self, path: str) -> Any: ...

    async def device(self) -> str:
        """cpu or cuda: where the weights are."""
        return str((await self._read("/server_info")).get("device", "")).partition(":")[0]

    async def num_ranks(self, backend: str) -> int:
        """One a tensor-parallel rank. SGLang knows no broadcast to data- or pipeline-parallel engines."""
        info = await self._read("/server_info")
        for name in ("dp_size", "pp_size"):
            if int(info.get(name) or 1) != 1:
                raise EngineError(
                    f"engine {self.url} has {name} {info[name]}: SGLang takes no broadcast then; use transfer full",
                    status=400,
                    retryable=False,
                )
        device = str(info.get("device", "")).partition(":")[0]
        if (backend == "nccl") != (device == "cuda"):
            raise EngineError(
                f"engine {self.url} holds its weights on {device or 'an unknown device'}, which {backend} does not "
                "reach; use transfer full",
                status=400,
                retryable=False,
            )
        return int(info.get("tp_size") or 1)

    async def join_group(self, group: GroupAddress, rank: int, *, seconds: float) -> None:
        """Returns when every rank has come."""
        if not group.name:
            raise EngineError("a group needs a name: SGLang ends without one", status=400, retryable=False)
        body = {
            "master_address": group.host,
            "master_port": group.port,
            "rank_offset": rank,
            "world_size": group.world_size,
            "group_name": group.name,
            "backend": group.backend,
        }
        await self._change("/init_weights_update_group", body, seconds=seconds)

    async def swaps_at_end(self) -> bool:
        """Whether tensors that come change nothing before the end: SGLang loads each as it comes."""
        return bool((await self._read("/server_info")).get("swaps_weights_at_end"))

    async def begin_update(self, *, discard: bool = False) -> None:
        """`discard` what came in a session that was left open; only where weights are swapped at the end."""
        await self._change("/begin_weight_update", {"discard": True} if discard else {}, seconds=CONTROL_SECONDS)

    async def receive(self, bucket: Bucket, group: str, *, seconds: float) -> None:
        """Returns when the engine has the bucket. Its version and its cache are changed after the last."""
        body = {
            "names": bucket.names,
            "dtypes": bucket.dtypes,
            "shapes": bucket.shapes,
            "group_name": group,
            "load_format": FLATTENED,
            "flush_cache": False,
        }
        await self._change("/update_weights_from_distributed", body, seconds=seconds)

    async def end_update(self) -> None:
        await self._change("/end_weight_update", {}, seconds=CONTROL_SECONDS)

    async def leave_group(self, group: str) -> None:
        await self._change("/destroy_weights_update_group", {"group_name": group}, seconds=LEAVE_SECONDS)

    async def set_version(self, version: str) -> None:
        """Name the weights. SGLang would abort what runs, unless told not to."""
        await self._change("/update_weight_version", {"new_version": version, "abort_all_requests": False})
