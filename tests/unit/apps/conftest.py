"""What tests of the control plane share: a project, people with each role, REST clients, an object store."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rest_framework.test import APIClient

from apps.accounts.models import Membership, Project, Role, User

Client = Callable[[User], APIClient]


@pytest.fixture(autouse=True)
def object_store(settings, tmp_path: Path) -> None:
    """A store of the test's own."""
    settings.OBJECT_STORE_URL = f"file://{tmp_path / 'objects'}"


@pytest.fixture
def project(db) -> Project:
    return Project.objects.create(slug="demo", title="Demo")


@pytest.fixture
def other_project(db) -> Project:
    return Project.objects.create(slug="other", title="Other")


def _member(project: Project, name: str, role: str) -> User:
    user = User.objects.create_user(username=name, password="a good password")
    Membership.objects.create(user=user, project=project, role=role)
    return user


@pytest.fixture
def viewer(project: Project) -> User:
    return _member(project, "vera", Role.VIEWER)


@pytest.fixture
def engineer(project: Project) -> User:
    return _member(project, "ed", Role.ENGINEER)


@pytest.fixture
def reviewer(project: Project) -> User:
    return _member(project, "rita", Role.REVIEWER)


@pytest.fixture
def approver(project: Project) -> User:
    return _member(project, "pam", Role.APPROVER)


@pytest.fixture
def owner(project: Project) -> User:
    """The project's admin."""
    return _member(project, "ada", Role.ADMIN)


@pytest.fixture
def stranger(other_project: Project) -> User:
    """Engineer of the other project."""
    return _member(other_project, "sam", Role.ENGINEER)


@pytest.fixture
def client_of() -> Client:
    """A REST client that acts as a user."""

    def make(user: User) -> APIClient:
        client = APIClient()
        client.force_authenticate(user)
        return client

    return make
