"""Many clients change the same thing at once: one wins, the others get a problem document, and no update is lost."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from apps.accounts.models import Membership, Project, Role, User
from apps.accounts.services import issue_token
from apps.policies.models import Policy
from apps.webhooks.models import Webhook
from tests.support.worlds import World, make_world

pytestmark = pytest.mark.django_db(transaction=True)
NUM_CLIENTS = 12


@pytest.fixture
def world() -> World:
    return make_world()


def caller_of(user: User) -> Callable[..., Any]:
    secret = issue_token(user=user, name="ci", by=None).secret

    def ask(method: str, path: str, body: object = None, **headers: str):
        sent = {"Authorization": f"Bearer {secret}", **headers}
        client = Client(raise_request_exception=False)
        content = {} if body is None else {"data": body}
        return getattr(client, method)(f"/api/v1/{path}", content_type="application/json", headers=sent, **content)

    return ask


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The answers of calls that start together, each on a connection of its own."""
    answers: list[Any] = []
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> None:
        try:
            start.wait(timeout=120)
            answers.append(call())
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=[call]) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert len(answers) == len(calls)
    for answer in answers:
        if answer.status_code >= 400:
            assert answer.headers["Content-Type"] == "application/problem+json", answer.content
    return answers


def statuses(answers: Sequence[Any]) -> Counter[int]:
    return Counter(answer.status_code for answer in answers)


@pytest.mark.parametrize("what", ["projects", "policies", "members"])
def test_one_slug_is_made_once(world, what):
    admin = world.users[Role.ADMIN]
    admin.is_superuser = True
    admin.save()
    User.objects.create_user("newcomer")
    path, body = {
        "projects": ("projects/", {"slug": "racing"}),
        "policies": ("policies/", {"project": "lab", "slug": "racing", "base_model": "tiny"}),
        "members": ("projects/lab/members/", {"username": "newcomer", "role": "viewer"}),
    }[what]
    ask = caller_of(admin)
    seen = statuses(at_once([lambda: ask("post", path, body)] * NUM_CLIENTS))
    assert set(seen) <= {201, 409} and seen[201] >= 1, seen
    assert what == "members" or seen[201] == 1
    made = {
        "projects": Project.objects.filter(slug="racing"),
        "policies": Policy.objects.filter(slug="racing"),
        "members": Membership.objects.filter(user__username="newcomer"),
    }[what]
    assert made.count() == 1


@pytest.mark.parametrize("what", ["member", "webhook"])
def test_what_is_deleted_at_once_goes_once(world, what):
    ask = caller_of(world.users[Role.ADMIN])
    path = "projects/lab/members/lab-viewer/"
    if what == "webhook":
        hook = Webhook.objects.create(project=world.project, url="https://example.org/x", events=["run:*"])
        path = f"webhooks/{hook.pk}/"
    seen = statuses(at_once([lambda: ask("delete", path)] * NUM_CLIENTS))
    assert seen == {204: 1, 404: NUM_CLIENTS - 1}


@pytest.mark.parametrize("demoted", [False, True])
def test_two_admins_who_take_each_other_out_leave_one(world, demoted):
    names = ["lab-admin", "lab-approver"]
    admins = [User.objects.get(username=name) for name in names]
    asks = [caller_of(admin) for admin in admins]
    verb = ("put", {"role": "viewer"}) if demoted else ("delete", None)
    for _ in range(5):
        for admin in admins:
            Membership.objects.update_or_create(user=admin, project=world.project, defaults={"role": Role.ADMIN})
        calls = [
            lambda ask=ask, other=other: ask(verb[0], f"projects/lab/members/{other}/", verb[1])
            for ask, other in zip(asks, reversed(names), strict=True)
        ]
        seen = statuses(at_once(calls))
        assert seen[200] + seen[204] == 1 and not set(seen) - {200, 204, 403, 404, 409}, seen
        assert Membership.objects.filter(project=world.project, role=Role.ADMIN).count() == 1


@pytest.mark.parametrize("what", ["project", "member", "webhook"])
def test_of_changes_on_one_etag_one_goes_through(world, what):
    ask = caller_of(world.users[Role.ADMIN])
    hook = Webhook.objects.create(project=world.project, url="https://example.org/x", events=["run:*"])
    path = {"project": "projects/lab/", "webhook": f"webhooks/{hook.pk}/", "member": "projects/lab/members/lab-viewer/"}
    tag = ask("get", path[what])["ETag"]
    roles = [Role.ENGINEER, Role.REVIEWER, Role.APPROVER]
    changes = {
        "project": lambda number: ("patch", {"title": f"Title {number}"}),
        "member": lambda number: ("put", {"role": roles[number % 3]}),
        "webhook": lambda number: ("patch", {"url": f"https://example.org/{number}"}),
    }[what]

    def change(number: int) -> Any:
        method, body = changes(number)
        return ask(method, path[what], body, **{"If-Match": tag})

    answers = at_once([lambda number=number: change(number) for number in range(NUM_CLIENTS)])
    assert statuses(answers) == {200: 1, 412: NUM_CLIENTS - 1}


def test_a_key_with_a_body_that_is_refused_never_breaks(world):
    ask = caller_of(world.users[Role.ENGINEER])
    key = {"Idempotency-Key": "the-key"}
    answers = at_once([lambda: ask("post", "policies/", {"project": "lab"}, **key)] * 4 * NUM_CLIENTS)
    assert {(answer.status_code, answer.json()["code"]) for answer in answers} <= {
        (400, "invalid"),
        (409, "idempotency_in_flight"),
    }
    assert 400 in statuses(answers)
