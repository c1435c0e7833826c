"""Who may do what: permissions, the roles that hold them, and the checks that every service and selector calls."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from uuid import UUID

from django.contrib.auth.models import AnonymousUser
from django.db.models import QuerySet

from apps.accounts.models import Membership, Project, Role, User
from ratchet.problems import Problem

Actor = User | AnonymousUser | None  # None: the platform itself


class Permission(StrEnum):
    """Rights in a project, sorted `resource:action`. Token scopes use the same words."""

    AUDIT_READ = "audit:read"
    CHANNEL_CALL = "channel:call"  # ask the policy served by a channel
    CHANNEL_MOVE = "channel:move"
    CHANNEL_READ = "channel:read"
    CHANNEL_ROLLBACK = "channel:rollback"
    EPISODE_READ = "episode:read"
    EVALUATION_CREATE = "evaluation:create"
    EVALUATION_READ = "evaluation:read"
    GATE_CREATE = "gate:create"
    GATE_DECIDE = "gate:decide"
    GATE_OVERRIDE = "gate:override"
    GATE_READ = "gate:read"
    HELDOUT_READ = "heldout:read"  # content of held-out tasks and of episodes on them
    MEMBER_MANAGE = "member:manage"
    POLICY_CREATE = "policy:create"
    POLICY_READ = "policy:read"
    PROJECT_READ = "project:read"
    PROJECT_UPDATE = "project:update"
    REVIEW_ADJUDICATE = "review:adjudicate"
    REVIEW_LABEL = "review:label"
    REVIEW_MANAGE = "review:manage"
    REVIEW_READ = "review:read"
    RUN_CONTROL = "run:control"  # pause, resume, cancel, retry
    RUN_CREATE = "run:create"
    RUN_READ = "run:read"
    SUITE_CREATE = "suite:create"
    SUITE_READ = "suite:read"
    TASK_RELEASE = "task:release"  # out of quarantine
    TOKEN_CREATE = "token:create"  # noqa: S105
    WEBHOOK_MANAGE = "webhook:manage"


_P = Permission
_EVERYONE = frozenset(
    {_P.CHANNEL_CALL, _P.CHANNEL_READ, _P.EVALUATION_READ, _P.GATE_READ, _P.POLICY_READ, _P.PROJECT_READ}
    | {_P.REVIEW_READ, _P.RUN_READ, _P.SUITE_READ, _P.TOKEN_CREATE}
)

# Engineers do not read held-out content: what trains must not be tuned on it. Reviewers label held-out episodes, but
# only through the blind queue, so they lack episode:read, which would show them the verdict.
ROLE_PERMISSIONS: dict[str, frozenset[Permission]] = {
    Role.VIEWER: _EVERYONE | {_P.EPISODE_READ},
    Role.ENGINEER: _EVERYONE
    | {_P.AUDIT_READ, _P.CHANNEL_ROLLBACK, _P.EPISODE_READ, _P.EVALUATION_CREATE, _P.GATE_CREATE, _P.POLICY_CREATE}
    | {_P.REVIEW_MANAGE, _P.RUN_CONTROL, _P.RUN_CREATE, _P.SUITE_CREATE, _P.TASK_RELEASE, _P.WEBHOOK_MANAGE},
    Role.REVIEWER: _EVERYONE | {_P.HELDOUT_READ, _P.REVIEW_LABEL},
    Role.APPROVER: _EVERYONE
    | {_P.AUDIT_READ, _P.CHANNEL_MOVE, _P.CHANNEL_ROLLBACK, _P.EPISODE_READ, _P.EVALUATION_CREATE, _P.GATE_CREATE}
    | {_P.GATE_DECIDE, _P.GATE_OVERRIDE, _P.HELDOUT_READ, _P.REVIEW_ADJUDICATE, _P.REVIEW_MANAGE, _P.RUN_CONTROL},
    Role.ADMIN: frozenset(Permission),
}


def has_permission(user: Actor, permission: Permission | str, project: Project | UUID) -> bool:
    """Whether the user may do this in the project, by role and within the token's scopes and project."""
    if user is None:
        return True
    project_id = project.pk if isinstance(project, Project) else project
    return isinstance(user, User) and bool(who_may([user], permission, project_id))


def who_may(users: Sequence[User], permission: Permission | str, project_id: UUID) -> list[User]:
    """Those of the users whom `has_permission` lets, however many with one statement."""
    covered = [
        user for user in users if user.is_active and _token_covers(user, project_id) and _in_scope(user, permission)
    ]
    asked = [user.pk for user in covered if not user.is_superuser]
    rows = Membership.objects.filter(user__in=asked, project_id=project_id).values_list("user_id", "role")
    roles = dict(rows) if asked else {}
    return [
        user
        for user in covered
        if user.is_superuser or permission in ROLE_PERMISSIONS.get(roles.get(user.pk, ""), frozenset())
    ]


def is_member(user: Actor, project: Project) -> bool:
    """Whether the user may know that the project exists."""
    return user is None or visible_projects(user).filter(pk=project.pk).exists()


def require(user: Actor, permission: Permission | str, project: Project) -> None:
    """Raise Problem: 404 for strangers (the project does not exist for them), 403 for members without the right."""
    if has_permission(user, permission, project):
        return
    if not is_member(user, project):
        raise not_found()
    raise Problem(
        "forbidden", 403, f"This needs the right {permission} in project {project.slug}: ask an admin of the project."
    )


def require_superuser(user: Actor) -> None:
    """For what belongs to no project: only superusers, and not through a narrowed token."""
    if user is None:
        return
    if not isinstance(user, User) or not user.is_superuser or user.token_scopes or user.token_project_id:
        raise Problem("forbidden", 403, "Only a superuser of this installation may do this, with an unscoped token.")


def visible_projects(user: Actor) -> QuerySet[Project]:
    """Projects whose existence the user may know."""
    projects = Project.objects.order_by("slug")
    if user is None:
        return projects
    if not isinstance(user, User) or not user.is_active:
        return projects.none()
    if user.token_project_id:
        projects = projects.filter(pk=user.token_project_id)
    return projects if user.is_superuser else projects.filter(memberships__user=user)


def permitted_projects(user: Actor, permission: Permission | str) -> QuerySet[Project]:
    """Projects in which the user may do this: the filter of every list."""
    projects = visible_projects(user)
    if not isinstance(user, User):
        return projects
    if not _in_scope(user, permission):
        return projects.none()
    if user.is_superuser:
        return projects
    roles = [role for role, permissions in ROLE_PERMISSIONS.items() if permission in permissions]
    # One filter() for both: the same membership row must match.
    return projects.filter(pk__in=Membership.objects.filter(user=user, role__in=roles).values("project_id"))


def find_project(user: Actor, slug: str, permission: Permission | str = Permission.PROJECT_READ) -> Project:
    """The project of this slug, with the right checked. 404 for unknown and for strangers alike."""
    project = visible_projects(user).filter(slug=slug).first()
    if project is None:
        raise Problem(
            "not_found", 404, f"There is no project {slug!r} that you may see.", [{"path": "project", "message": slug}]
        )
    require(user, permission, project)
    return project


def permissions_of(user: Actor, project: Project) -> list[str]:
    """All the user may do in the project, sorted; pages decide by it what to offer."""
    return sorted(permission for permission in Permission if has_permission(user, permission, project))


def rights_of(user: User) -> dict[str, str]:
    """The user's role by project id, and `superuser`: what a stored answer was given on the strength of."""
    roles = Membership.objects.filter(user=user).values_list("project_id", "role")
    return {str(project): role for project, role in roles} | ({"superuser": "yes"} if user.is_superuser else {})


def still_holds(user: User, rights: dict[str, str] | None) -> bool:
    """Whether the user may do now all they might with `rights`. None: nobody wrote down what they were."""
    now = rights_of(user)
    if rights is None or ("superuser" in rights and "superuser" not in now):
        return False
    if "superuser" in now:
        return True
    nothing: frozenset[Permission] = frozenset()
    return all(
        role in ROLE_PERMISSIONS and ROLE_PERMISSIONS[role] <= ROLE_PERMISSIONS.get(now.get(project, ""), nothing)
        for project, role in rights.items()
    )


def check_scopes(scopes: Iterable[str]) -> list[str]:
    """Sorted scopes. Raises Problem 400 naming the unknown one."""
    known = set(Permission)
    unknown = sorted(set(scopes) - known)
    if unknown:
        errors = [{"path": "scopes", "message": f"{scope!r} is unknown"} for scope in unknown]
        raise Problem("invalid", 400, f"Unknown scope: use any of {', '.join(sorted(known))}.", errors)
    return sorted(set(scopes))


def not_found() -> Problem:
    """The same answer for what does not exist and for what the caller may not know of."""
    return Problem("not_found", 404, "There is no such object, or you may not see it.")


def _in_scope(user: User, permission: Permission | str) -> bool:
    return not user.token_scopes or permission in user.token_scopes


def _token_covers(user: User, project_id: UUID) -> bool:
    return user.token_project_id is None or user.token_project_id == project_id
