"""Two projects with one of everything, made once for a module; what a test changes is rolled back."""

from collections.abc import Iterator

import pytest
from django.db import connection, transaction
from django.test import override_settings

from tests.api.worlds import Plant, plant


@pytest.fixture(scope="module")
def plants(django_db_setup, django_db_blocker, tmp_path_factory) -> Iterator[tuple[Plant, Plant]]:
    """`own` and `other`."""
    store = f"file://{tmp_path_factory.mktemp('objects')}"
    with django_db_blocker.unblock(), override_settings(OBJECT_STORE_URL=store), transaction.atomic():
        made = plant("own"), plant("other")
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")  # without statistics the larger queries take seconds
        yield made
        transaction.set_rollback(True)


@pytest.fixture
def undone(plants) -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)
