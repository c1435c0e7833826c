"""Every websocket × every role × own and other project; a right that is taken in mid-session ends the next push."""

import asyncio
import re
from typing import Any

import pytest
from channels.db import database_sync_to_async
from django.conf import settings as django_settings
from django.test import Client

from apps.accounts.models import ApiToken, Membership, Role, User
from apps.accounts.permissions import ROLE_PERMISSIONS, Permission
from apps.accounts.services import issue_token, revoke_token
from apps.metrics.routing import websocket_urlpatterns
from ratchet.asgi import application
from tests.api.worlds import Plant, plant
from tests.support.sockets import Socket

pytestmark = pytest.mark.django_db(transaction=True)

# Route of every websocket, the right that opens it, and the object that it is of.
SOCKETS = {"ws/runs/<uuid:run_id>/": (Permission.RUN_READ, "run")}
UNAUTHENTICATED, NOT_FOUND, CLOSED = 4401, 4404, 1000


@pytest.fixture
def made(settings, tmp_path) -> tuple[Plant, User]:
    settings.OBJECT_STORE_URL = f"file://{tmp_path}"
    own = plant("own")
    stranger = User.objects.create_user("stranger", password="a very good password")
    return own, stranger


def test_every_socket_has_an_entry():
    assert {str(pattern.pattern) for pattern in websocket_urlpatterns} == set(SOCKETS)


def _cookie(user: User) -> bytes:
    client = Client()
    client.force_login(user)
    return f"{django_settings.SESSION_COOKIE_NAME}={client.session.session_key}".encode()


def _open(path: str, cookie: bytes, origin: bytes = b"http://testserver") -> Socket:
    headers = [(b"origin", origin), (b"cookie", cookie), (b"host", b"testserver")]
    return Socket(application, path, headers=headers)


async def answer(route: str, object_id: str, cookie: bytes, origin: bytes = b"http://testserver") -> int:
    """0: it answers what is there; else the code it closes with."""
    socket = _open("/" + re.sub(r"<[^>]+>", object_id, route), cookie, origin)
    await socket.send_input({"type": "websocket.connect"})
    said = await socket.receive_output(timeout=20)
    if said["type"] == "websocket.accept":
        await socket.send_json({"cursor": 0, "events": 0})
        said = await socket.receive_output(timeout=20)
    code = 0 if said["type"] == "websocket.send" else said.get("code", CLOSED)
    await socket.close()
    return code


async def test_the_right_opens_and_its_lack_closes(made):
    own, stranger = made
    for route, (right, name) in SOCKETS.items():
        object_id = str(own.ids[name])
        for role in Role.values:
            expected = 0 if right in ROLE_PERMISSIONS[role] else NOT_FOUND
            assert await answer(route, object_id, await database_sync_to_async(_cookie)(own.users[role])) == expected, (
                role
            )
        assert await answer(route, object_id, await database_sync_to_async(_cookie)(stranger)) == NOT_FOUND
        assert await answer(route, object_id, b"") == UNAUTHENTICATED
        assert await answer(route, object_id, b"sessionid=guessed") == UNAUTHENTICATED
        mine = await database_sync_to_async(_cookie)(own.users[Role.ADMIN])
        assert await answer(route, object_id, mine, b"https://elsewhere.example") == CLOSED, "another site's page"


async def _end(socket: Socket) -> int:
    """The code it closes with, by itself: nobody asks, and the run has no news."""
    async with asyncio.timeout(60):
        # What was read before the right was taken may have been under way.
        while (said := await socket.receive_output(timeout=60))["type"] == "websocket.send":
            pass
    assert said["type"] == "websocket.close"
    return int(said["code"])


async def test_a_path_without_a_socket_is_closed_cleanly(made):
    own, _ = made
    header, _ = await database_sync_to_async(_token)(own.users[Role.VIEWER])
    for path in ("/", "/ws/", "/ws/runs/", "/ws/runs/not-a-run/", f"/ws/runs/{own.ids['run']}/more/", "/api/v1/runs/"):
        for headers in ([(b"authorization", header)], [(b"origin", b"http://testserver")]):
            socket = Socket(application, path, headers=[*headers, (b"host", b"testserver")])
            await socket.connect()
            assert await _end(socket) == NOT_FOUND
            await socket.close()


async def test_a_person_switched_off_loses_the_socket_that_never_asked(made):
    own, _ = made
    viewer = own.users[Role.VIEWER]
    socket = _open(f"/ws/runs/{own.ids['run']}/", await database_sync_to_async(_cookie)(viewer))
    await socket.connect()
    await database_sync_to_async(User.objects.filter(pk=viewer.pk).update)(is_active=False)
    assert await _end(socket) == UNAUTHENTICATED
    await socket.close()


async def test_a_role_that_is_taken_closes_the_open_socket(made):
    own, _ = made
    engineer = own.users[Role.ENGINEER]
    socket = _open(f"/ws/runs/{own.ids['run']}/", await database_sync_to_async(_cookie)(engineer))
    await socket.connect()
    await socket.send_json({"cursor": 0, "events": 0})
    assert (await socket.receive_output(timeout=20))["type"] == "websocket.send"
    await database_sync_to_async(Membership.objects.filter(user=engineer).delete)()
    assert await _end(socket) == NOT_FOUND
    await socket.close()


async def test_signing_out_closes_the_sockets_of_that_session_alone(made):
    own, _ = made
    viewer = own.users[Role.VIEWER]
    cookies = [await database_sync_to_async(_cookie)(viewer) for _ in range(2)]
    sockets = [_open(f"/ws/runs/{own.ids['run']}/", cookie) for cookie in cookies]
    for socket in sockets:
        await socket.connect()
    leaving = Client(headers={"Cookie": cookies[0].decode()})
    assert (await database_sync_to_async(leaving.post)("/accounts/logout/")).status_code == 302
    assert await _end(sockets[0]) == UNAUTHENTICATED
    await sockets[1].send_json({"cursor": 0, "events": 0})
    assert (await sockets[1].receive_output(timeout=20))["type"] == "websocket.send"
    for socket in sockets:
        await socket.close()


async def test_a_new_password_closes_the_sockets_of_sessions_before_it(made):
    own, _ = made
    viewer = own.users[Role.VIEWER]
    socket = _open(f"/ws/runs/{own.ids['run']}/", await database_sync_to_async(_cookie)(viewer))
    await socket.connect()
    viewer.set_password("another very good password")
    await database_sync_to_async(viewer.save)()
    assert await _end(socket) == UNAUTHENTICATED
    await socket.close()


def _token(user: User, **fields: Any) -> tuple[bytes, ApiToken]:
    made = issue_token(user=user, name="program", by=None, **fields)
    return b"Bearer " + made.secret.encode(), made.token


async def test_a_program_comes_with_its_token_and_no_origin(made):
    own, stranger = made
    path = f"/ws/runs/{own.ids['run']}/"

    async def says(header: bytes) -> int:
        socket = Socket(application, path, headers=[(b"authorization", header), (b"host", b"testserver")])
        await socket.connect()
        await socket.send_json({"cursor": 0, "events": 0})
        said = await socket.receive_output(timeout=20)
        await socket.close()
        return 0 if said["type"] == "websocket.send" else said["code"]

    token = database_sync_to_async(_token)
    good, _ = await token(own.users[Role.VIEWER])
    assert await says(good) == 0
    assert await says((await token(stranger))[0]) == NOT_FOUND
    assert await says((await token(own.users[Role.ADMIN], scopes=["suite:read"]))[0]) == NOT_FOUND
    assert await says(b"Bearer rt_guessed") == UNAUTHENTICATED
    assert await says(b"Bearer") == UNAUTHENTICATED


async def test_a_token_that_is_revoked_closes_the_open_socket(made):
    own, _ = made
    header, token = await database_sync_to_async(_token)(own.users[Role.VIEWER])
    path = f"/ws/runs/{own.ids['run']}/"
    socket = Socket(application, path, headers=[(b"authorization", header), (b"host", b"testserver")])
    await socket.connect()
    await socket.send_json({"cursor": 0, "events": 0})
    assert (await socket.receive_output(timeout=20))["type"] == "websocket.send"
    await database_sync_to_async(revoke_token)(token=token, by=own.users[Role.VIEWER])
    assert await _end(socket) == UNAUTHENTICATED
    await socket.close()
