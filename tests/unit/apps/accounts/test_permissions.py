"""Who may do what, by role, token and membership."""

import pytest
from django.contrib.auth.models import AnonymousUser

from apps.accounts.models import Membership, Role, User
from apps.accounts.permissions import (
    ROLE_PERMISSIONS,
    Permission,
    find_project,
    has_permission,
    permissions_of,
    permitted_projects,
    require,
    visible_projects,
)
from ratchet.problems import Problem


def test_permissions_are_sorted_and_every_role_has_some():
    assert list(Permission) == sorted(Permission)
    assert set(ROLE_PERMISSIONS) == set(Role.values)
    assert all(
        ROLE_PERMISSIONS[Role.VIEWER] - {Permission.EPISODE_READ} <= rights for rights in ROLE_PERMISSIONS.values()
    )


def test_who_trains_does_not_read_held_out_and_who_labels_does_not_read_verdicts(project, engineer, approver, reviewer):
    assert has_permission(approver, Permission.HELDOUT_READ, project)
    assert has_permission(reviewer, Permission.HELDOUT_READ, project)
    assert not has_permission(engineer, Permission.HELDOUT_READ, project)
    assert not has_permission(reviewer, Permission.EPISODE_READ, project)
    assert not has_permission(engineer, Permission.GATE_DECIDE, project)
    assert not has_permission(engineer, Permission.CHANNEL_MOVE, project)


def test_require_hides_the_project_from_strangers_and_names_the_right_to_members(project, viewer, engineer, stranger):
    require(engineer, Permission.RUN_CREATE, project)
    with pytest.raises(Problem) as refused:
        require(viewer, Permission.RUN_CREATE, project)
    assert (refused.value.status, refused.value.code) == (403, "forbidden")
    assert "run:create" in refused.value.detail
    with pytest.raises(Problem) as hidden:
        require(stranger, Permission.RUN_READ, project)
    assert (hidden.value.status, hidden.value.code) == (404, "not_found")


def test_a_role_in_one_project_gives_nothing_in_another(project, other_project, engineer):
    Membership.objects.create(user=engineer, project=other_project, role=Role.VIEWER)
    assert set(visible_projects(engineer)) == {project, other_project}
    assert list(permitted_projects(engineer, Permission.RUN_CREATE)) == [project]
    assert not has_permission(engineer, Permission.RUN_CREATE, other_project)


def test_scopes_and_project_of_a_token_narrow_even_a_superuser(project, other_project, admin_user):
    assert has_permission(admin_user, Permission.RUN_CREATE, project)
    admin_user.token_scopes = frozenset({"run:read", "project:read"})
    admin_user.token_project_id = project.pk
    assert has_permission(admin_user, Permission.RUN_READ, project)
    assert not has_permission(admin_user, Permission.RUN_CREATE, project)
    assert not has_permission(admin_user, Permission.RUN_READ, other_project)
    assert list(visible_projects(admin_user)) == [project]
    assert not permitted_projects(admin_user, Permission.RUN_CREATE).exists()
    assert permissions_of(admin_user, project) == ["project:read", "run:read"]


def test_inactive_and_anonymous_users_may_nothing(project, engineer):
    assert has_permission(engineer, Permission.RUN_READ, project)
    User.objects.filter(pk=engineer.pk).update(is_active=False)
    engineer.refresh_from_db()
    for user in (engineer, AnonymousUser()):
        assert not has_permission(user, Permission.RUN_READ, project)
        assert not visible_projects(user).exists()
        with pytest.raises(Problem, match="no project 'demo'"):
            find_project(user, "demo")
