"""A websocket client for consumers. (channels.testing would need the Daphne server.)"""

import json
from collections.abc import Sequence
from typing import Any

from asgiref.testing import ApplicationCommunicator

SECONDS = 20.0  # a busy machine is slow to answer


class Socket(ApplicationCommunicator):
    """Connects to an ASGI application, as `user` or with `headers`; messages are JSON."""

    def __init__(
        self, application: Any, path: str, user: Any = None, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        scope = {
            "type": "websocket",
            "path": path,
            "query_string": b"",
            "headers": list(headers),
            "subprotocols": [],
            **({"user": user} if user is not None else {}),
        }
        super().__init__(application, scope)

    async def connect(self) -> None:
        """Raises AssertionError where the application does not accept."""
        await self.send_input({"type": "websocket.connect"})
        answer = await self.receive_output(SECONDS)
        assert answer["type"] == "websocket.accept", answer

    async def send_json(self, value: Any) -> None:
        await self.send_input({"type": "websocket.receive", "text": json.dumps(value)})

    async def receive_json(self, timeout: float = SECONDS) -> Any:
        answer = await self.receive_output(timeout)
        assert answer["type"] == "websocket.send", answer
        return json.loads(answer["text"])

    async def close(self) -> None:
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait(SECONDS)
