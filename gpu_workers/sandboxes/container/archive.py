"""The workspace as the server of a container sends it: entries behind lengths, believed in nothing. Pure."""

from collections.abc import Iterator, Sequence

from gpu_workers.sandboxes.artifacts import AllowList
from gpu_workers.sandboxes.container.inside.wire import ENTRY, FILE
from gpu_workers.sandboxes.snapshot import MAX_FILES, Snapshot


class ArchiveError(ValueError):
    """Bytes that are no archive."""


def read_archive(data: bytes, max_bytes: int, artifacts: Sequence[str] = ("**",)) -> Snapshot:
    """What may leave. Raises ArchiveError on a malformed archive."""
    snapshot = Snapshot(max_bytes, AllowList(artifacts))
    for kind, path, content in _entries(data):
        snapshot.num_entries += 1
        problem = _problem(snapshot, path, content) if kind == FILE else content[:200].decode(errors="replace")
        if problem:
            snapshot.refuse(path if path.isprintable() else repr(path), problem)
        elif not snapshot.allowed.takes(path):
            snapshot.num_left += 1
        else:
            snapshot.files[path] = content
            snapshot.num_bytes += len(content)
    return snapshot


def _entries(data: bytes) -> Iterator[tuple[int, str, bytes]]:
    at = 0
    while at < len(data):
        if at + ENTRY.size > len(data):
            raise ArchiveError("it ends within an entry")
        kind, path_length, length = ENTRY.unpack_from(data, at)
        at += ENTRY.size
        if at + path_length + length > len(data):
            raise ArchiveError("it ends within an entry")
        path = data[at : at + path_length].decode("utf-8", "surrogateescape")
        at += path_length
        yield kind, path, data[at : at + length]
        at += length


def _problem(snapshot: Snapshot, path: str, content: bytes) -> str:
    if not path.isprintable():
        return "name is not printable"
    if path.startswith("/") or not set(path.split("/")).isdisjoint({"", ".", ".."}) or path in snapshot.files:
        return "not a path of its own below the workspace"
    if len(snapshot.files) >= MAX_FILES:
        return f"more than {MAX_FILES} files"
    if len(content) > snapshot.max_bytes - snapshot.num_bytes:
        return f"{len(content)} bytes exceed what is left of {snapshot.max_bytes}"
    return ""
