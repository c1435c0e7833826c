"""Heads of chains: signed beside the events, and copied to the object store, where no database user can reach them.

Every event has its copy within seconds of its commit.
"""

import json
from uuid import UUID

from django.core.signing import BadSignature, Signer
from django.utils import timezone

from apps.audit import messaging
from apps.audit.models import AuditEvent, AuditHead
from gpu_workers.contracts.store import StoreError
from ratchet.commits import after_commit
from ratchet.store import get_store

_SALT = "audit.head"


def move(event: AuditEvent) -> None:
    """Point the chain's head at its new event, in the event's transaction; on commit the head is copied."""
    signature = sign(event.project_id, event.sequence, event.hash)
    AuditHead.objects.update_or_create(
        project_id=event.project_id,
        defaults={"sequence": event.sequence, "hash": event.hash, "signature": signature},
    )
    after_commit(messaging.request_anchor, event.project_id, event.sequence, event.hash, signature)


def sign(project_id: UUID | None, sequence: int, digest: str) -> str:
    return Signer(salt=_SALT).signature(_text(project_id, sequence, digest))


def is_genuine(head: AuditHead) -> bool:
    """Whether the platform wrote this head, with its secret key or one it had before."""
    return _is_signed(head.project_id, head.sequence, head.hash, head.signature)


def anchor(project_id: UUID | None, sequence: int, digest: str, signature: str) -> bool:
    """Copy a head to the object store, once; False where it is there. Its name says all: verifying only lists.

    A head that is not the platform's is found by verifying; it must not become an anchor.
    """
    store = get_store()
    key = f"{_folder(project_id)}/{sequence:012d}-{digest}.json"
    if not _is_signed(project_id, sequence, digest, signature) or store.exists(key):
        return False
    body = {"sequence": sequence, "hash": digest, "at": timezone.now().isoformat()}
    store.write(key, json.dumps(body).encode())
    return True


def anchor_all() -> int:
    """Copy every head that is not there yet: a message may be lost. Returns how many were new."""
    heads = AuditHead.objects.order_by("id").values_list("project_id", "sequence", "hash", "signature")
    return sum(anchor(*head) for head in heads)


def anchors_of(project_id: UUID | None) -> dict[int, str]:
    """Hashes by sequence that were copied for the project. One that cannot be read, or two that differ, count as
    another hash."""
    store = get_store()
    folder = _folder(project_id)
    try:
        paths = store.fs.ls(store.path(folder), detail=False)
    except FileNotFoundError:
        return {}
    found: dict[int, str] = {}
    for name in sorted(str(path).rsplit("/", 1)[-1] for path in paths):
        number, _, digest = name.removesuffix(".json").partition("-")
        if not name.endswith(".json") or not number.isdecimal():
            continue
        digest = digest or _hash_in(f"{folder}/{name}")
        found[int(number)] = digest if found.get(int(number), digest) == digest else ""
    return found


def _hash_in(key: str) -> str:
    """The hash that an anchor of before holds, when it was not in the name."""
    try:
        return str(json.loads(get_store().get(key))["hash"])
    except (StoreError, ValueError, KeyError, TypeError):
        return ""


def _is_signed(project_id: UUID | None, sequence: int, digest: str, signature: str) -> bool:
    try:
        Signer(salt=_SALT).unsign(f"{_text(project_id, sequence, digest)}:{signature}")
    except BadSignature:
        return False
    return True


def _folder(project_id: UUID | None) -> str:
    return f"audit/{project_id or 'platform'}"


def _text(project_id: UUID | None, sequence: int, digest: str) -> str:
    return f"{project_id or 'platform'}|{sequence}|{digest}"
