"""Writes of invitations: ask a person into a project by a link, take it back, accept it with an account old or new."""

from dataclasses import dataclass
from datetime import timedelta

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from apps.accounts.models import Invitation, Membership, Project, Role, User
from apps.accounts.permissions import Permission, require
from apps.accounts.services import add_member
from apps.accounts.tokens import digest_of, make_secret
from apps.audit.services import record
from ratchet.problems import Problem

DEFAULT_DAYS = 7
MAX_DAYS = 30


@dataclass(frozen=True)
class SentInvitation:
    """A new invitation with the secret of its link, which is never seen again."""

    invitation: Invitation
    secret: str

    @property
    def path(self) -> str:
        return f"/invitations/{self.secret}/"


def is_open(invitation: Invitation) -> bool:
    return invitation.accepted_at is None and invitation.revoked_at is None and invitation.expires_at > timezone.now()


def open_invitations() -> QuerySet[Invitation]:
    """Those that can be accepted now."""
    rows = Invitation.objects.filter(accepted_at=None, revoked_at=None, expires_at__gt=timezone.now())
    return rows.select_related("project", "invited_by")


def find_open(secret: str) -> Invitation | None:
    """The open invitation of a link."""
    return open_invitations().filter(digest=digest_of(secret)).first()


@transaction.atomic
def invite(*, project: Project, email: str, role: str, by: User | None, days: int = DEFAULT_DAYS) -> SentInvitation:
    """A link that gives its holder a role in the project. An older open one for the same address ends.

    Raises Problem 400 naming every field that is wrong.
    """
    require(by, Permission.MEMBER_MANAGE, project)
    errors = _field_errors(email, role, days)
    if errors:
        raise Problem("invalid", 400, "The invitation cannot be made.", errors)
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    open_invitations().filter(project=project, email__iexact=email).update(revoked_at=timezone.now())
    secret = make_secret()
    invitation = Invitation.objects.create(
        project=project, email=email, role=role, digest=digest_of(secret), invited_by=by,
        expires_at=timezone.now() + timedelta(days=days),
    )  # fmt: skip
    after = {"email": email, "role": role, "expires_at": invitation.expires_at}
    record(tag="user:invitation:create", by=by, project=project, subject=invitation, after=after)
    return SentInvitation(invitation, secret)


@transaction.atomic
def revoke_invitation(*, invitation: Invitation, by: User | None) -> Invitation:
    """Close a link. Repeating it changes nothing; one that was accepted stays so: take the member out instead."""
    require(by, Permission.MEMBER_MANAGE, invitation.project)
    invitation = _lock(invitation)
    if invitation.accepted_at is not None:
        raise Problem("invitation_accepted", 409, f"{invitation.email} has joined already: remove the member instead.")
    if invitation.revoked_at is None:
        invitation.revoked_at = timezone.now()
        invitation.save(update_fields=["revoked_at"])
        before = {"email": invitation.email, "role": invitation.role}
        record(tag="user:invitation:revoke", by=by, project=invitation.project, subject=invitation, before=before)
    return invitation


@transaction.atomic
def accept_invitation(*, invitation: Invitation, by: User) -> Membership:
    """Join the project.

    Raises Problem 409 for who has a role there already, where the link was used, taken back or has expired, or where
    who invited may no longer.
    """
    invitation = _lock(invitation)
    if not is_open(invitation):
        raise _closed()
    if Membership.objects.filter(project=invitation.project, user=by).exists():
        raise Problem("already_member", 409, f"You have a role in {invitation.project.title} already.")
    invitation.accepted_at, invitation.accepted_by = timezone.now(), by
    invitation.save(update_fields=["accepted_at", "accepted_by"])
    try:
        member = add_member(project=invitation.project, user=by, role=invitation.role, by=invitation.invited_by)
    except Problem as problem:
        raise _closed() if problem.status in (403, 404) else problem from problem
    after = {"email": invitation.email, "role": invitation.role}
    record(tag="user:invitation:accept", by=by, project=invitation.project, subject=invitation, after=after)
    return member


@transaction.atomic
def join_as_new_person(*, invitation: Invitation, username: str, password: str) -> User:
    """Make the account of an invited person and join. Raises Problem 400 naming every field that is wrong."""
    user = User(username=username.strip(), email=invitation.email)
    errors = []
    try:
        User.username_validator(user.username)
    except ValidationError as error:
        errors += [{"path": "username", "message": words} for words in error.messages]
    if not 1 <= len(user.username) <= 150 or User.objects.filter(username__iexact=user.username).exists():
        errors.append({"path": "username", "message": "is taken or too long: choose another"})
    try:
        validate_password(password, user)
    except ValidationError as error:
        errors += [{"path": "password", "message": words} for words in error.messages]
    if errors:
        raise Problem("invalid", 400, "The account cannot be made.", errors)
    user.set_password(password)
    user.save()
    accept_invitation(invitation=invitation, by=user)
    return user


def _field_errors(email: str, role: str, days: int) -> list[dict[str, str]]:
    errors = []
    try:
        validate_email(email)
    except ValidationError:
        errors.append({"path": "email", "message": "is no e-mail address"})
    if role not in Role.values:
        errors.append({"path": "role", "message": f"{role!r} is not one of {', '.join(Role.values)}"})
    if not 1 <= days <= MAX_DAYS:
        errors.append({"path": "days", "message": f"must be between 1 and {MAX_DAYS}"})
    return errors


def _closed() -> Problem:
    return Problem("invitation_closed", 409, "This invitation was used, taken back, or has expired: ask for a new one.")


def _lock(invitation: Invitation) -> Invitation:
    rows = Invitation.objects.select_for_update(of=("self",)).select_related("project", "invited_by")
    return rows.get(pk=invitation.pk)
