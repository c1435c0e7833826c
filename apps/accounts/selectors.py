"""Reads of accounts: members of a project, a user's tokens, what a token is good for."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import QuerySet

from apps.accounts.authentication import act_as, find_token, touch
from apps.accounts.models import ApiToken, Invitation, Membership, Project, User
from apps.accounts.permissions import Actor, Permission, not_found, permitted_projects, require


@dataclass(frozen=True)
class Introspection:
    """What a gateway may know of a token: whose it is, and which projects' channels it may call."""

    active: bool
    user: str = ""
    projects: tuple[str, ...] = ()
    expires_at: datetime | None = None


def members_of(by: Actor, project: Project) -> QuerySet[Membership]:
    """The project's members with their users."""
    require(by, Permission.PROJECT_READ, project)
    return Membership.objects.filter(project=project).select_related("user", "project").order_by("-id")


def find_member(by: Actor, project: Project, username: str) -> Membership:
    """One member by name. Raises Problem 404."""
    member = members_of(by, project).filter(user__username=username).first()
    if member is None:
        raise not_found()
    return member


def invitations_of(by: Actor, project: Project) -> QuerySet[Invitation]:
    """The project's invitations, newest first, for who may give roles."""
    require(by, Permission.MEMBER_MANAGE, project)
    return (
        Invitation.objects.filter(project=project)
        .select_related("project", "invited_by", "accepted_by")
        .order_by("-id")
    )


def find_invitation(by: Actor, project: Project, invitation_id: UUID | str) -> Invitation:
    """One invitation by id. Raises Problem 404."""
    found = invitations_of(by, project).filter(pk=invitation_id).first()
    if found is None:
        raise not_found()
    return found


def tokens_of(by: User) -> QuerySet[ApiToken]:
    """The user's own tokens; through a token of one project, only those of that project, and through one whose scopes
    lack token:create, only itself."""
    tokens = ApiToken.objects.filter(user=by).select_related("project").order_by("-id")
    if by.token_scopes and Permission.TOKEN_CREATE not in by.token_scopes:
        tokens = tokens.filter(pk=by.token_id) if by.token_id else tokens.none()
    return tokens.filter(project_id=by.token_project_id) if by.token_project_id else tokens


def introspect(secret: str) -> Introspection:
    """Whether a token lives and what it may call. Counts as a use of the token."""
    token = find_token(secret)
    if token is None:
        return Introspection(active=False)
    touch(token)
    user = act_as(token)
    slugs = permitted_projects(user, Permission.CHANNEL_CALL).values_list("slug", flat=True)
    return Introspection(True, user.get_username(), tuple(slugs), token.expires_at)
