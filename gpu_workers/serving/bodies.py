"""Reading request bodies, bounded."""

from starlette.requests import Request

from gpu_workers.serving.errors import ApiError


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises ApiError 413 as soon as it is longer than `limit` bytes."""
    chunks, size = [], 0
    async for chunk in request.stream():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise ApiError(413, "body_too_large", f"the body is larger than {limit} bytes")
    return b"".join(chunks)
