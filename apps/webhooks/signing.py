"""Signatures of webhooks as Standard Webhooks 1.0 defines them (github.com/standard-webhooks, spec)."""

import base64
import hashlib
import hmac
from uuid import UUID

from django.conf import settings

PREFIX = "whsec_"


def secret_of(webhook_id: UUID, version: int) -> str:
    """The webhook's secret: derived from the platform's key, so that the database holds nothing that signs."""
    message = f"ratchet webhook {webhook_id} {version}".encode()
    digest = hmac.new(settings.SECRET_KEY.encode(), message, hashlib.sha256).digest()
    return PREFIX + base64.b64encode(digest).decode()


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """`v1,` and the base64 of HMAC-SHA256 over id, timestamp (seconds) and body, joined by dots."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = b".".join([message_id.encode(), str(timestamp).encode(), body])
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
