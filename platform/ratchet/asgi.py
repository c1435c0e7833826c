"""ASGI entry point: pages and REST over HTTP, live updates over websockets."""

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.asgi import get_asgi_application

from ratchet.env import use_settings

use_settings()
http_application = get_asgi_application()  # sets Django up: consumers may be imported only after it

from apps.metrics.routing import websocket_urlpatterns  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": http_application,
        "websocket": AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns))),
    }
)
