"""Heads of chains: signed beside the events, and copied to the object store, where no database user can reach them."""

import json
from uuid import UUID

from django.core.signing import BadSignature, Signer
from django.utils import timezone

from apps.audit.models import AuditEvent, AuditHead
from gpu_workers.contracts.store import StoreError
from ratchet.store import get_store

_SALT = "audit.head"


def move(event: AuditEvent) -> None:
    """Point the chain's head at its new event, in the event's transaction."""
    AuditHead.objects.update_or_create(
        project_id=event.project_id,
        defaults={
            "sequence": event.sequence,
            "hash": event.hash,
            "signature": sign(event.project_id, event.sequence, event.hash),
        },
    )


def sign(project_id: UUID | None, sequence: int, digest: str) -> str:
    return Signer(salt=_SALT).signature(_text(project_id, sequence, digest))


def is_genuine(head: AuditHead) -> bool:
    """Whether the platform wrote this head, with its secret key or one it had before."""
    try:
        Signer(salt=_SALT).unsign(f"{_text(head.project_id, head.sequence, head.hash)}:{head.signature}")
    except BadSignature:
        return False
    return True


def anchor_all() -> int:
    """Copy every head that moved to the object store, once. Returns how many were new."""
    store, count = get_store(), 0
    for head in AuditHead.objects.order_by("id"):
        key = f"{_folder(head.project_id)}/{head.sequence:012d}.json"
        if not is_genuine(head) or store.exists(key):
            continue  # a forged head is found by verifying; it must not become an anchor
        body = {"sequence": head.sequence, "hash": head.hash, "at": timezone.now().isoformat()}
        store.write(key, json.dumps(body).encode())
        count += 1
    return count


def anchors_of(project_id: UUID | None) -> dict[int, str]:
    """Hashes by sequence that were copied for the project. An anchor that cannot be read counts as another hash."""
    store = get_store()
    folder = _folder(project_id)
    try:
        paths = store.fs.ls(store.path(folder), detail=False)
    except FileNotFoundError:
        return {}
    found: dict[int, str] = {}
    for name in sorted(str(path).rsplit("/", 1)[-1] for path in paths):
        if not name.endswith(".json") or not name[:-5].isdecimal():
            continue
        try:
            found[int(name[:-5])] = str(json.loads(store.get(f"{folder}/{name}"))["hash"])
        except (StoreError, ValueError, KeyError, TypeError):
            found[int(name[:-5])] = ""
    return found


def _folder(project_id: UUID | None) -> str:
    return f"audit/{project_id or 'platform'}"


def _text(project_id: UUID | None, sequence: int, digest: str) -> str:
    return f"{project_id or 'platform'}|{sequence}|{digest}"
