"""What reviews do when runs announce something."""

from typing import Any

from django.dispatch import receiver

from apps.reviews import messaging
from apps.runs.models import Group
from apps.runs.signals import group_stored
from ratchet.commits import after_commit


@receiver(group_stored)
def sample_stored_group(group: Group, **_: Any) -> None:
    if group.uri:
        after_commit(messaging.request_sampling, group.pk)
