"""Idempotent creation: the same Idempotency-Key and body get the same answer, once."""

import hashlib
import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from ratchet.problems import CONTENT_TYPE, Problem

HEADER = "Idempotency-Key"
MAX_KEY = 200
_KEY = re.compile(rf"[!-~]{{1,{MAX_KEY}}}")
_ABANDONED = timedelta(minutes=10)


def idempotent(request: Request, answer: Callable[[], Response]) -> Response:
    """Answer a request once per key of its user; without the header nothing changes.

    Same key and body: the stored answer, with `Idempotent-Replay: true`, to who may still do all they might then;
    else Problem 403. Other body, path or reach of the token: 422. Still being answered: 409. What was made and the
    answer to it are committed together, so a process that is killed leaves neither; a refusal, a crash or an answer
    of 5xx frees the key for another try.
    """
    from apps.accounts.models import IdempotencyKey, User
    from apps.accounts.permissions import rights_of

    key, user = request.headers.get(HEADER), request.user
    if key is None or not isinstance(user, User) or getattr(request, "idempotency_key", None) == key:
        return answer()
    if not _KEY.fullmatch(key):
        words = f"{HEADER} must be 1 to {MAX_KEY} visible ASCII characters without blanks."
        raise Problem("idempotency_key_invalid", 400, words)
    body_hash = _body_hash(request)
    try:
        with transaction.atomic():
            row = IdempotencyKey.objects.create(user=user, key=key, path=request.path, body_hash=body_hash)
    except IntegrityError:
        row = _stored(user, key)
        abandoned = row.status_code is None and row.created_at < timezone.now() - _ABANDONED
        if not (abandoned and row.path == request.path and row.body_hash == body_hash):
            return _replay(row, user, request.path, body_hash)
        # The process that took the key was killed: exactly one of those who ask again takes it over.
        taken = IdempotencyKey.objects.filter(pk=row.pk, status_code=None, created_at=row.created_at)
        if not taken.update(created_at=timezone.now()):
            return _replay(_stored(user, key), user, request.path, body_hash)
    request.idempotency_key = key  # type: ignore[attr-defined]  # taken: post() may call create()
    try:
        with transaction.atomic():
            response = answer()
            row.status_code = response.status_code
            row.response = json.loads(JSONRenderer().render(response.data) or b"null")
            row.location = response.headers.get("Location", "")
            row.rights = rights_of(user)  # after the answer: it may have given some
            row.save(update_fields=["status_code", "response", "location", "rights"])
    except Exception:
        IdempotencyKey.objects.filter(pk=row.pk).delete()
        raise
    if response.status_code >= 500:
        row.delete()
    return response


def _stored(user: Any, key: str) -> Any:
    """The row of a key that is taken. A refusal may have freed it meanwhile: Problem 409, ask again."""
    from apps.accounts.models import IdempotencyKey

    row = IdempotencyKey.objects.filter(user=user, key=key).first()
    if row is None:
        raise _in_flight()
    return row


def _in_flight() -> Problem:
    return Problem("idempotency_in_flight", 409, "The first request with this key is still running: ask again.")


def _replay(row: Any, user: Any, path: str, body_hash: str) -> Response:
    from apps.accounts.permissions import still_holds

    if row.path != path or row.body_hash != body_hash:
        raise Problem(
            "idempotency_key_reused", 422, f"This {HEADER} was used for another request: send a new key with it."
        )
    if row.status_code is None:
        raise _in_flight()
    if not still_holds(user, row.rights):
        words = f"You may do less than when this {HEADER} was first sent: send the request with a new key."
        raise Problem("forbidden", 403, words)
    kind = CONTENT_TYPE if row.status_code >= 400 else None
    headers = {"Idempotent-Replay": "true"} | ({"Location": row.location} if row.location else {})
    return Response(row.response, status=row.status_code, headers=headers, content_type=kind)


def _body_hash(request: Request) -> str:
    """Of the body, and of how far its token reaches: a narrower one must not fetch a wider one's answer."""
    user = request.user
    reach = [sorted(getattr(user, "token_scopes", ())), str(getattr(user, "token_project_id", None))]
    sent = [request.data, request.query_params, reach]
    canonical = json.dumps(sent, sort_keys=True, separators=(",", ":"), default=_hashable)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _hashable(value: Any) -> str:
    """An uploaded file counts by its content."""
    if not hasattr(value, "chunks"):
        return str(value)
    digest = hashlib.sha256()
    for chunk in value.chunks():
        digest.update(chunk)
    value.seek(0)
    return digest.hexdigest()
