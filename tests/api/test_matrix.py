"""Every address × every role × own and other project: the right opens, its lack closes, and nothing leaks between."""

import json

import pytest
from django.db import transaction
from django.test import Client
from django.urls import reverse

from apps.accounts.models import Role, User
from apps.accounts.permissions import ROLE_PERMISSIONS, Permission
from apps.audit.models import AuditEvent
from tests.api.doors import DOORS, Door, Who, addresses, entries, methods_of
from tests.api.worlds import CANARY, Plant

pytestmark = pytest.mark.django_db
IDS = [f"{method} {name} {number}" for number, (name, method, _) in enumerate(entries())]
# Doors through which whoever may read held-out content gets it; others show none.
CONTENT = {
    "api-suite-tasks", "api-suite-tasks-export", "api-evaluation-episodes", "api-review-labels",
    "api-task", "api-episode", "api-episodes", "api-group", "api-episode-reproductions",
    "api-reproduction", "api-evaluation-results", "api-gate", "api-gate-evidence", "api-measured-candidates",
    "api-measured-candidate", "api-review-next", "suite", "suite-verifier", "task", "episode", "group",
    "measured-candidate", "gate", "review", "api-gate-decision",
}  # fmt: skip


@pytest.fixture
def _django_db_helper(undone):
    """In place of pytest-django's, which would close the connection that holds what the module made."""


def test_every_address_has_an_entry():
    known = {name for name, _ in DOORS}
    found = {name for name, _ in addresses() if not name.startswith(("admin:", "unnamed ^api/"))}
    assert found - known == set(), "addresses without a right: add them to tests/api/doors.py"
    assert known - found == set(), "entries of addresses that are gone"


def test_every_method_of_the_api_has_an_entry():
    for name, view in addresses():
        if name.startswith("api-"):
            methods = methods_of(view)
            assert methods and methods == {method for known, method in DOORS if known == name}, name


def holds(role: str, door: Door) -> bool:
    return bool(door.rights) and set(door.rights) <= ROLE_PERMISSIONS[role]


def send(client: Client, name: str, method: str, door: Door, plant: Plant) -> tuple[int, str]:
    url = reverse(name, kwargs=door.kwargs(plant))
    body = door.body(plant) if door.body else None
    api = url.startswith(("/api/", "/internal/"))
    if method == "GET":
        response = client.get(url, door.query(plant))
    elif api:
        data = json.dumps(body) if body is not None else ""
        response = client.generic(method, url, data, content_type="application/json")
    else:
        response = client.post(url, body or {})
    content = b"".join(response.streaming_content) if response.streaming else response.content  # type: ignore[arg-type]
    return response.status_code, content.decode()


def enter(user: User | None) -> Client:
    client = Client(raise_request_exception=True)
    if user is not None:
        client.force_login(user)
    return client


@pytest.mark.parametrize(("name", "method", "door"), [*entries()], ids=IDS)
def test_the_right_opens_and_its_lack_closes(plants, name: str, method: str, door: Door):
    own, other = plants
    seen = set()
    for role in Role.values:
        for plant, reader in ((own, own.users[role]), (own, other.users[role])):
            with_right = reader in own.users.values() and holds(role, door)
            status, text = attempt(reader, name, method, door, plant)
            assert status < 500 or status in door.ok, (role, status, text[:500])
            check(door, role, plant, member=reader in own.users.values(), right=with_right, status=status, text=text)
            if CANARY in text:
                seen.add(role)
                assert text.count(CANARY) == text.count(next(p for p in plants if reader in p.users.values()).canary)
    allowed = {role for role in Role.values if Permission.HELDOUT_READ in ROLE_PERMISSIONS[role]}
    assert not seen or name in CONTENT, f"{name} shows held-out content: list it, and audit its reads"
    assert seen <= allowed


def attempt(reader: User | None, name: str, method: str, door: Door, plant: Plant) -> tuple[int, str]:
    """Ask, and undo what was done. What shows held-out content must have been written down first."""
    with transaction.atomic():
        client = enter(reader)
        before = AuditEvent.objects.filter(tag="user:heldout:read").count()
        status, text = send(client, name, method, door, plant)
        looks = AuditEvent.objects.filter(tag="user:heldout:read").count() - before
        if CANARY in text and reader is not None:
            assert looks, f"{name} showed held-out content to {reader} and no audit event says so"
        transaction.set_rollback(True)
    return status, text


def check(door: Door, role: str, plant: Plant, *, member: bool, right: bool, status: int, text: str) -> None:
    who = f"{role} of {'its own' if member else 'another'} project"
    if door.shows is not None:
        assert status == 200, who
        visible = right
        assert (door.shows(plant) in text) is visible, f"{who} {'misses' if visible else 'sees'} it in the list"
        return
    match door.right:
        case Who.ANYONE | Who.SIGNED_IN:
            assert status in door.ok, (who, text[:300])
        case Who.SUPERUSER | Who.WORKER:
            assert status == 403, who
        case Who.OWNER:
            assert status == 404, who
        case _:
            expected = door.ok if right else door.closed if member else (404,)
            assert status in expected, (who, status, text[:300])


@pytest.mark.parametrize(("name", "method", "door"), [*entries()], ids=IDS)
def test_who_is_not_signed_in_gets_nothing(plants, name: str, method: str, door: Door):
    status, text = attempt(None, name, method, door, plants[0])
    assert CANARY not in text
    if door.right in (Who.ANYONE, Who.WORKER):
        assert status in ((403,) if door.right is Who.WORKER else door.ok)
    else:
        assert status == (401 if name.startswith("api-") else 302)


def test_the_admin_site_is_for_staff(plants):
    own, _ = plants
    found = [name for name, _ in addresses() if name.startswith("admin:") and name.endswith("_changelist")]
    assert found
    client = enter(own.users[Role.ADMIN])
    for name in found:
        assert client.get(reverse(name)).status_code == 302


def test_the_canary_is_where_held_out_content_is(plants):
    """The matrix would prove nothing if the content were not shown to those who may read it."""
    own, _ = plants
    shown = set()
    for name, method, door in entries():
        if name in CONTENT:
            role = Role.REVIEWER if name in ("api-review-next", "review") else Role.ADMIN
            shown |= {name} if CANARY in attempt(own.users[role], name, method, door, own)[1] else set()
    assert shown == CONTENT
