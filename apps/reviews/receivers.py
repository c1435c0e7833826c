"""What reviews do when runs announce something."""

from functools import partial
from typing import Any

from django.db import transaction
from django.dispatch import receiver

from apps.reviews import messaging
from apps.runs.models import Group
from apps.runs.signals import group_stored


@receiver(group_stored)
def sample_stored_group(group: Group, **_: Any) -> None:
    if group.uri:
        transaction.on_commit(partial(messaging.request_sampling, group.pk), robust=True)
