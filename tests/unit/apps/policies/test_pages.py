"""Pages of policies and channels."""

import pytest
from django.test import Client

from apps.policies.models import MoveKind
from apps.policies.services import move_channel, set_channel
from tests.support.evaluations import make_policy


@pytest.fixture
def channel(project):
    first = make_policy(project, "first")
    channel = set_channel(project=project, name="production", policy=first, by=None)
    second = make_policy(project, "second", parent=first)
    move_channel(channel=channel, to_policy=second, kind=MoveKind.PROMOTION, by=None, reason="<b>better</b>")
    return channel


def get(user, path: str, status: int = 200) -> str:
    client = Client()
    client.force_login(user)
    response = client.get(path)
    assert response.status_code == status
    return response.content.decode()


def test_a_channel_shows_every_move_and_offers_the_way_back_by_right(channel, engineer, viewer, stranger):
    text = get(engineer, "/channels/demo/production/")
    assert "Put first back?" in text
    assert 'data-if-match="2"' in text
    assert "&lt;b&gt;better" in text
    assert "nothing serves this channel now" in text  # no gateway has said hello
    assert "Roll back" not in get(viewer, "/channels/demo/production/")
    get(stranger, "/channels/demo/production/", 404)


def test_the_list_filters_by_kind_and_keeps_to_ones_projects(channel, project, engineer, stranger):
    make_policy(project, "prompted", adapter=False)
    assert "prompted" in get(engineer, "/policies/?kind=prompt")
    assert ">second</a>" not in get(engineer, "/policies/?kind=prompt").split('id="all"')[1]
    assert "second" not in get(stranger, "/policies/")
