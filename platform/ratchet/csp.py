"""Content Security Policy of every answer: scripts and connections of our own origin only."""

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse

_STRICT: dict[str, str] = {
    "default-src": "'self'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "font-src": "'self'",
    "object-src": "'none'",
    "base-uri": "'self'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}
# Swagger and ReDoc write styles as they run; ReDoc searches in a worker.
_DOCS = _STRICT | {
    "style-src": "'self' 'unsafe-inline'",
    "worker-src": "'self' blob:",
}
_DOCS_PATHS = ("/api/docs/", "/api/redoc/")
_SIGN_IN_PATHS = ("/accounts/login/", "/account/", "/invitations/")


class ContentSecurityPolicyMiddleware:
    """Sets the header. A view whose page needs inline styles (Plotly) sets `response.csp_inline_style = True`."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        policy = dict(_DOCS if request.path.startswith(_DOCS_PATHS) else _STRICT)
        if getattr(response, "csp_inline_style", False):
            policy["style-src"] = "'self' 'unsafe-inline'"
        if settings.OIDC_ORIGIN and request.path.startswith(_SIGN_IN_PATHS):
            policy["form-action"] += f" {settings.OIDC_ORIGIN}"  # the sign-in form is redirected there
        policy["connect-src"] = f"'self' {_socket_origin(request)}".strip()
        header = "; ".join(f"{name} {value}" for name, value in policy.items())
        response.headers.setdefault("Content-Security-Policy", header)
        return response


def _socket_origin(request: HttpRequest) -> str:
    """Our own websocket origin: older browsers do not count it as 'self'."""
    try:
        host = request.get_host()
    except Exception:
        return ""
    return f"{'wss' if request.is_secure() else 'ws'}://{host}"
