"""Objects that rows name: their sizes, and their deletion where no other row names them."""

from collections.abc import Iterable
from typing import Any

from django.db.models import Q, QuerySet

from apps.runs.models import Checkpoint, Group
from ratchet.store import get_store

Rows = QuerySet[Any]


def checkpoint_bytes(rows: Rows) -> int:
    return sum(_folder_bytes(uri) for uri in rows.values_list("uri", flat=True))


def delete_checkpoints(rows: Rows) -> int:
    """Delete folders; the row stays, without an address. Returns how many."""
    store, count = get_store(), 0
    for checkpoint in rows.iterator(chunk_size=200):
        uri = checkpoint.uri
        Checkpoint.objects.filter(pk=checkpoint.pk).update(uri="", adapter="")
        shared = Checkpoint.objects.filter(uri=uri).exists()
        if uri and not shared and store.fs.exists(store.path(uri)):
            store.fs.rm(store.path(uri), recursive=True)
        count += 1
    return count


def group_bytes(rows: Rows) -> int:
    return sum(_object_bytes(key) for pair in rows.values_list("uri", "transcript").iterator() for key in pair if key)


def delete_group_files(rows: Rows) -> int:
    """Delete a group's files; equal files of other groups are one object, which stays while any of them names it."""
    count = 0
    for group in rows.iterator(chunk_size=200):
        keys = {group.uri, group.transcript} - {""}
        Group.objects.filter(pk=group.pk).update(uri="", transcript="")
        for key in keys:
            _delete_object(key)
        count += 1
    return count


def _delete_object(key: str) -> None:
    store = get_store()
    if not Group.objects.filter(Q(uri=key) | Q(transcript=key)).exists() and store.exists(key):
        store.fs.rm(store.path(key))


def _object_bytes(key: str) -> int:
    store = get_store()
    try:
        return int(store.fs.size(store.path(key)) or 0)
    except FileNotFoundError:
        return 0


def _folder_bytes(key: str) -> int:
    store = get_store()
    try:
        sizes: Iterable[Any] = store.fs.find(store.path(key), detail=True).values()
    except FileNotFoundError:
        return 0
    return sum(int(item["size"] or 0) for item in sizes)
