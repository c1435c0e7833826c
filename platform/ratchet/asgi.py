"""ASGI entry point: pages and REST over HTTP, live updates over websockets."""

import gc

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.urls import re_path
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from ratchet.env import use_settings

use_settings()
http_application = get_asgi_application()  # sets Django up: consumers may be imported only after it

from apps.accounts.sockets import BearerOr, no_such_socket  # noqa: E402
from apps.metrics.routing import websocket_urlpatterns  # noqa: E402
from ratchet import urls  # noqa: E402, F401  all views, so that they are frozen too

sockets = URLRouter([*websocket_urlpatterns, re_path("", no_such_socket)])  # type: ignore[arg-type]  # Channels routes
protocols = ProtocolTypeRouter(
    {
        "http": http_application,
        "websocket": BearerOr(sockets, AllowedHostsOriginValidator(AuthMiddlewareStack(sockets))),
    }
)
# The one place that reads X-Forwarded-For: lockouts, limits and the audit trail all see the address it leaves.
application = ProxyHeadersMiddleware(protocols, trusted_hosts=list(settings.TRUSTED_PROXIES))
gc.collect()
gc.freeze()  # half a million objects of code and settings that no later collection need walk through
