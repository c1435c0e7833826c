"""The whole API against its own OpenAPI document, as each role: no 5xx, no answer that the document does not know.

One example an operation, as admin, by default; `make test-schema` asks for many as each role (SCHEMA_EXAMPLES).
"""

import os
import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections, transaction
from django.urls import resolve
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig

from apps.accounts.models import Role
from apps.accounts.services import issue_token
from tests.api.doors import DOORS
from tests.api.worlds import Plant

pytestmark = pytest.mark.django_db
EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "0"))
ROLES = Role.values if EXAMPLES else [Role.ADMIN]  # who may do most gets furthest
# A body may fit the document and still not the state of the world or the rules between its fields; what may be said
# then is documented, and that it is said is tested elsewhere.
_MAY_REFUSE = ["2xx", "400", "401", "403", "404", "409", "412", "422", "428"]
CONFIG = SchemathesisConfig.from_dict({"checks": {"positive_data_acceptance": {"expected-statuses": _MAY_REFUSE}}})
SCHEMA = schemathesis.openapi.from_wsgi("/api/v1/schema/?format=json", get_wsgi_application(), config=CONFIG)
OPERATIONS = [result.ok() for result in SCHEMA.get_all_operations()]


@pytest.fixture
def _django_db_helper(undone):
    """In place of pytest-django's, which would close the connection that holds what the module made."""


@pytest.fixture(scope="module", autouse=True)
def kept_connection() -> Iterator[None]:
    """As Django's own test client: a request must not close the connection that the module's transaction is on."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.fixture(scope="module")
def tokens(plants: tuple[Plant, Plant]) -> dict[str, str]:
    own, _ = plants
    return {role: issue_token(user=own.users[role], name="schema", by=None).secret for role in Role.values}


def real_path(operation: Any, plant: Plant) -> dict[str, str]:
    """Path parameters of an object that there is: with invented ones every answer would be 404."""
    names = re.findall(r"{(\w+)}", operation.path)
    dummy = {name: "x" if name in ("slug", "username", "project", "name", "finding") else UUID(int=0) for name in names}
    door = DOORS[resolve(operation.path.format(**dummy)).url_name, operation.method.upper()]
    kwargs = (door[0] if isinstance(door, tuple) else door).kwargs(plant)
    return {name: str(kwargs["pk" if name == "id" else name]) for name in names}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_answers_are_as_documented(plants: tuple[Plant, Plant], tokens: dict[str, str], operation: Any, role: str):
    headers = {"Authorization": f"Bearer {tokens[role]}"}
    fixed = real_path(operation, plants[0])
    bounded = settings(
        max_examples=EXAMPLES or 1, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip

    def ask(case: Any) -> None:
        case.query.pop("fields", None)  # sparse answers lack what the document requires; test_endpoints asks for them
        with transaction.atomic():
            case.call_and_validate(headers=headers)
            transaction.set_rollback(True)

    bounded(given(case=operation.as_strategy(GenerationMode.POSITIVE, path_parameters=fixed))(ask))()
    bounded(given(case=operation.as_strategy(GenerationMode.POSITIVE))(ask))()
    if operation.body or operation.query or operation.headers:
        bounded(given(case=operation.as_strategy(GenerationMode.NEGATIVE, path_parameters=fixed))(ask))()
