"""Celery jobs of reviews: ids in, one service call each."""

from celery import shared_task
from django.db import OperationalError

from apps.reviews import messaging, services
from apps.runs.models import Group


@shared_task(name=messaging.SAMPLE, autoretry_for=(OperationalError,), retry_backoff=True, max_retries=20)
def sample(group_id: str) -> int:
    """Draw review items from one stored group."""
    group = Group.objects.select_related("run", "evaluation_item__arm__policy", "evaluation_item__arm__checkpoint__run")
    return services.sample_group(group.get(pk=group_id))
