"""Projects, members and the first set-up."""

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from apps.accounts.models import ApiToken, Membership, Project, Role, User
from apps.audit.models import AuditEvent


def test_only_a_superuser_makes_projects_and_becomes_admin(admin_user, engineer, client_of):
    body = {"slug": "new", "title": "New"}
    assert client_of(engineer).post("/api/v1/projects/", body).status_code == 403
    assert not Project.objects.filter(slug="new").exists()
    answer = client_of(admin_user).post("/api/v1/projects/", body)
    assert (answer.status_code, answer.headers["Location"]) == (201, "/api/v1/projects/new/")
    assert Membership.objects.get(project__slug="new").role == Role.ADMIN
    again = client_of(admin_user).post("/api/v1/projects/", body)
    assert (again.status_code, again.json()["errors"][0]["path"]) == (409, "slug")


def test_the_same_key_creates_once_and_answers_the_same(admin_user, client_of):
    client = client_of(admin_user)
    answers = [
        client.post("/api/v1/projects/", {"slug": "once", "title": "Once"}, headers={"Idempotency-Key": "k1"})
        for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()
    assert answers[1].headers["Location"] == "/api/v1/projects/once/"
    assert Project.objects.filter(slug="once").count() == 1


def test_projects_and_members_are_invisible_to_strangers(project, engineer, stranger, client_of):
    assert client_of(engineer).get("/api/v1/projects/demo/").status_code == 200
    for url in ("/api/v1/projects/demo/", "/api/v1/projects/demo/members/", "/api/v1/projects/none/"):
        assert client_of(stranger).get(url).status_code == 404
    assert client_of(engineer).get("/api/v1/projects/demo/members/").json()["results"] == [
        {"username": "ed", "role": "engineer"}
    ]


def test_roles_are_given_and_taken_by_admins_only(project, owner, engineer, stranger, client_of):
    url = "/api/v1/projects/demo/members/"
    assert client_of(engineer).post(url, {"username": "sam", "role": "viewer"}).status_code == 403
    mine = client_of(owner)
    assert mine.post(url, {"username": "sam", "role": "viewer"}).status_code == 201
    assert mine.put(f"{url}sam/", {"role": "engineer"}).json() == {"username": "sam", "role": "engineer"}
    changed = AuditEvent.objects.filter(tag="user:member:set").last()
    assert (changed.before["role"], changed.after["role"]) == ("viewer", "engineer")
    assert mine.delete(f"{url}sam/").status_code == 204
    assert mine.delete(f"{url}sam/").status_code == 404
    unknown = mine.post(url, {"username": "nobody", "role": "viewer"}).json()
    assert (unknown["code"], unknown["errors"][0]["path"]) == ("unknown_user", "username")
    assert "/api/v1/projects/demo/invitations/" in unknown["detail"], "the way for who has no account"
    assert mine.post(url, {"username": "sam", "role": "king"}).json()["errors"][0]["path"] == "role"


def test_the_last_admin_stays(project, owner, client_of):
    mine = client_of(owner)
    for answer in (
        mine.delete("/api/v1/projects/demo/members/ada/"),
        mine.put("/api/v1/projects/demo/members/ada/", {"role": "viewer"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "last_admin")
    assert Membership.objects.get(user=owner).role == Role.ADMIN


def run_bootstrap(*options: str) -> dict:
    out = StringIO()
    call_command("bootstrap", "--json", *options, stdout=out)
    return json.loads(out.getvalue())


def test_bootstrap_makes_people_once(db, client):
    first = run_bootstrap(
        "--project", "tool-use:Tool use", "--project", "function-calling", "--manager-password", "given-one"
    )
    assert first["passwords"]["manager"] == "given-one"
    assert len(set(first["passwords"].values())) == 4
    for name, password in first["passwords"].items():
        assert client.post("/accounts/login/", {"username": name, "password": password}).status_code == 302
        client.logout()
    roles = dict(Membership.objects.filter(project__slug="tool-use").values_list("user__username", "role"))
    assert roles == {"admin": "admin", "engineer": "engineer", "manager": "approver", "reviewer": "reviewer"}
    assert User.objects.filter(is_superuser=True).values_list("username", flat=True)[0] == "admin"
    assert first["token"].startswith("rt_")

    second = run_bootstrap("--project", "tool-use", "--project", "function-calling")
    assert (second["created"], second["passwords"], second["token"]) == ([], {}, "")
    assert User.objects.get(username="engineer").check_password(first["passwords"]["engineer"])
    assert ApiToken.objects.count() == 1
    assert run_bootstrap("--new-token")["token"].startswith("rt_")


def test_bootstrap_refuses_a_bad_slug(db):
    with pytest.raises(CommandError, match="letters, digits"):
        run_bootstrap("--project", "no way:Title")
    assert not Project.objects.exists()
