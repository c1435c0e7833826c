"""The platform's object store, opened once per process from OBJECT_STORE_URL."""

from functools import lru_cache

from django.conf import settings

from gpu_workers.contracts.store import ObjectStore


def get_store() -> ObjectStore:
    """The store that settings name now (tests change them)."""
    return _open(settings.OBJECT_STORE_URL)


@lru_cache(maxsize=4)
def _open(url: str) -> ObjectStore:
    return ObjectStore(url)
