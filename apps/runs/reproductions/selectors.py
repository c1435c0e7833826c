"""Reads of reproductions: who may read an episode may read how it was played again."""

from uuid import UUID

from apps.accounts.permissions import Actor, Permission, has_permission, not_found
from apps.runs.models import Episode
from apps.runs.reproductions.models import Reproduction
from apps.runs.selectors import find_episode
from gpu_workers.contracts.enums import StopReason


def reproductions_of(episode: Episode) -> list[Reproduction]:
    """All of an episode, newest first. The caller has found the episode for who asks."""
    return list(episode.reproductions.select_related("requested_by"))


def may_reproduce(user: Actor, episode: Episode) -> bool:
    """Whether to offer it: the right to start measurements, and an episode that came to its end."""
    stored = bool(episode.group.transcript) and episode.stop_reason != StopReason.ERROR
    return stored and has_permission(user, Permission.EVALUATION_CREATE, episode.group.project)


def find_reproduction(user: Actor, episode_id: UUID | str, reproduction_id: UUID | str) -> Reproduction:
    """One of an episode that the user may read. Raises Problem 404, or 403 on a held-out task."""
    episode = find_episode(user, episode_id)
    found = episode.reproductions.select_related("requested_by").filter(pk=reproduction_id).first()
    if found is None:
        raise not_found()
    found.episode = episode
    return found
