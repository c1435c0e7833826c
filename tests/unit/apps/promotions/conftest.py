"""Fixtures of gate tests: a world with a gate's parts, a second approver."""

from collections import deque

import pytest

from apps.accounts.models import Membership, Role, User
from apps.promotions import messaging as promotion_messaging
from tests.support.evaluations import Workers
from tests.support.gates import GateWorld


@pytest.fixture
def world(project, engineer, monkeypatch) -> GateWorld:
    computes: deque = deque()
    monkeypatch.setattr(promotion_messaging, "request_verdict", computes.append)
    return GateWorld(project, engineer, Workers(monkeypatch), computes)


@pytest.fixture
def second_approver(project) -> User:
    user = User.objects.create_user("paul", password="a good password")
    Membership.objects.create(user=user, project=project, role=Role.APPROVER)
    return user
