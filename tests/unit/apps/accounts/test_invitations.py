"""Invitations by link: made by admins, used once, with an account old or new."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from apps.accounts.invitations import accept_invitation, find_open, invite
from apps.accounts.models import Invitation, Membership, User
from apps.audit.models import AuditEvent
from ratchet.problems import Problem

URL = "/api/v1/projects/demo/invitations/"
GOOD = "seven green lamps"


@pytest.fixture
def sent(project, owner):
    return invite(project=project, email="nina@example.org", role="engineer", by=owner)


def test_admins_invite_and_the_link_is_shown_once(project, owner, engineer, stranger, client_of):
    body = {"email": "nina@example.org", "role": "viewer"}
    assert client_of(engineer).post(URL, body).status_code == 403
    assert client_of(stranger).post(URL, body).status_code == 404
    mine = client_of(owner)
    made = mine.post(URL, body)
    assert made.status_code == 201
    secret = made.json()["url"].rstrip("/").rpartition("/")[2]
    assert find_open(secret) is not None
    assert secret not in mine.get(URL).content.decode() + mine.get(made["Location"]).content.decode()
    assert not AuditEvent.objects.filter(after__icontains=secret).exists()
    assert client_of(engineer).get(URL).status_code == 403
    wrong = mine.post(URL, {"email": "no", "role": "king", "days": 90, "colour": 1}).json()["errors"]
    assert sorted(error["path"] for error in wrong) == ["colour", "days", "email", "role"]


def test_a_new_invitation_ends_the_old_one_and_can_be_taken_back(project, owner, client_of, sent):
    again = invite(project=project, email="Nina@Example.org", role="viewer", by=owner)
    assert find_open(sent.secret) is None and find_open(again.secret) is not None
    url = f"{URL}{again.invitation.pk}/"
    assert [client_of(owner).delete(url).status_code for _ in range(2)] == [204, 204]
    assert find_open(again.secret) is None
    assert AuditEvent.objects.filter(tag="user:invitation:revoke").count() == 1


def test_somebody_with_an_account_joins_once(project, stranger, sent, client_of):
    client = client_of(stranger)
    joined = client.post("/api/v1/invitations/accept/", {"secret": sent.secret})
    assert (joined.status_code, joined.json()) == (201, {"username": "sam", "role": "engineer"})
    assert client.post("/api/v1/invitations/accept/", {"secret": sent.secret}).status_code == 404
    assert client.post("/api/v1/invitations/accept/", {"secret": "rt_guess"}).status_code == 404


def test_a_link_does_not_change_a_role_that_is_held(project, owner, sent):
    with pytest.raises(Problem, match="already") as refused:
        accept_invitation(invitation=sent.invitation, by=owner)
    assert refused.value.code == "already_member"
    assert Membership.objects.get(user=owner).role == "admin"
    assert find_open(sent.secret) is not None, "the link is still good for whom it was meant"


@pytest.mark.parametrize(
    "change", [{"expires_at": timezone.now() - timedelta(seconds=1)}, {"revoked_at": timezone.now()}]
)
def test_a_closed_link_opens_nothing(client: Client, stranger, sent, change):
    Invitation.objects.update(**change)
    assert client.get(sent.path).status_code == 404
    with pytest.raises(Problem, match="used, taken back"):
        accept_invitation(invitation=sent.invitation, by=stranger)


def test_an_invitation_of_somebody_who_is_no_admin_any_more_is_worth_nothing(project, owner, stranger, sent):
    Membership.objects.filter(user=owner).update(role="viewer")
    with pytest.raises(Problem) as refused:
        accept_invitation(invitation=sent.invitation, by=stranger)
    assert refused.value.code == "invitation_closed"
    assert not Membership.objects.filter(user=stranger, project=project).exists()


def test_a_new_person_makes_an_account_under_the_password_policy(client: Client, sent, engineer):
    page = client.get(sent.path)
    assert "Make your account" in page.content.decode() and page["Cache-Control"] == "no-store"
    for username, password, words in (
        ("ed", GOOD, "taken"), ("nina", "short", "at least 12"), ("nina", "123456789012", "entirely numeric"),
        ("a b", GOOD, "valid username"), ("nina-the-great", "nina-the-great", "similar"), ("", GOOD, "choose another"),
    ):  # fmt: skip
        text = client.post(sent.path, {"username": username, "password": password}).content.decode()
        assert words in text, (username, password)
        assert f'value="{username}"' in text and 'type="password" autocomplete="new-password" value=""' in text
    assert set(User.objects.values_list("username", flat=True)) == {"ada", "ed"}


def test_joining_signs_in(client: Client, project, sent):
    assert client.post(sent.path, {"username": "nina", "password": GOOD})["Location"] == "/"
    assert client.get("/api/v1/me/").json()["username"] == "nina"
    assert Membership.objects.get(user__username="nina").role == "engineer"
    assert User.objects.get(username="nina").email == "nina@example.org"
    assert client.post(sent.path).status_code == 404


def test_the_page_of_people(project, owner, engineer, viewer):
    reader, admin = Client(), Client()
    reader.force_login(viewer)
    admin.force_login(owner)
    url = "/projects/demo/people/"
    assert "Invite somebody" not in reader.get(url).content.decode()
    assert reader.post(url, {"email": "x@example.org", "role": "viewer", "days": "7"}).status_code == 403
    made = admin.post(url, {"email": "x@example.org", "role": "viewer", "days": "7"})
    assert "/invitations/rt_" in made.content.decode() and made["Cache-Control"] == "no-store"
    kept = admin.post(url, {"email": "nowhere", "role": "viewer", "days": "many"}).content.decode()
    assert 'value="nowhere"' in kept and "is no e-mail address" in kept and "days: must be" in kept
    assert admin.post(f"{url}ed/", {"role": "viewer"}).status_code == 302
    assert Membership.objects.get(user=engineer).role == "viewer"
    assert reader.post(f"{url}ed/", {"role": "admin"}).status_code == 403
    assert admin.post(f"{url}ed/", {"role": ""}).status_code == 302
    assert not Membership.objects.filter(user=engineer).exists()
    assert admin.post(f"{url}ada/", {"role": ""}).status_code == 409
    row = Invitation.objects.get()
    assert admin.post(f"/projects/demo/invitations/{row.pk}/revoke/").status_code == 302
    row.refresh_from_db()
    assert row.revoked_at is not None
