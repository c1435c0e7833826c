"""Notices to serving gateways over Redis: a channel moved, a token was revoked."""

import json
import logging
from collections.abc import Mapping

import redis
from django.conf import settings
from django.db import transaction

from gpu_workers.contracts.queues import CHANNEL_CHANGES

logger = logging.getLogger(__name__)

CHANNEL_MOVED = "channel_moved"  # {kind, project, channel, epoch}
TOKEN_REVOKED = "token_revoked"  # {kind, sha256}  # noqa: S105


def publish_on_commit(notice: Mapping[str, str | int]) -> None:
    """Tell every gateway once the transaction is through. A lost one only delays: gateways also ask by themselves."""
    transaction.on_commit(lambda: _publish(notice))


def _publish(notice: Mapping[str, str | int]) -> None:
    try:
        with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2) as client:
            client.publish(CHANNEL_CHANGES, json.dumps(dict(notice)))
    except redis.RedisError as error:
        logger.warning("gateways were not told of %s, they will ask by themselves: %s", dict(notice), error)
