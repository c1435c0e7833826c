"""The Content Security Policy of answers."""

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

from ratchet.csp import ContentSecurityPolicyMiddleware


def policy(path: str = "/", *, inline_style: bool = False, **headers: str) -> dict[str, str]:
    def view(request):
        response = HttpResponse()
        if inline_style:
            response.csp_inline_style = True
        return response

    answer = ContentSecurityPolicyMiddleware(view)(RequestFactory().get(path, **headers))
    parts = [part.split(" ", 1) for part in answer["Content-Security-Policy"].split("; ")]
    return dict(parts)


def test_scripts_and_styles_come_from_our_origin_only() -> None:
    found = policy()
    assert found["default-src"] == found["script-src"] == found["style-src"] == "'self'"
    assert found["frame-ancestors"] == found["object-src"] == "'none'"
    assert found["connect-src"] == "'self' ws://testserver"
    secure = {"wsgi.url_scheme": "https", "SERVER_PORT": "443"}
    assert policy(**secure)["connect-src"] == "'self' wss://testserver"


def test_a_view_may_ask_for_inline_styles_but_not_scripts() -> None:
    found = policy(inline_style=True)
    assert found["style-src"] == "'self' 'unsafe-inline'"
    assert found["script-src"] == "'self'"


@pytest.mark.parametrize("path", ["/api/docs/", "/api/redoc/"])
def test_api_documentation_may_start_inline(path: str) -> None:
    assert "'unsafe-inline'" in policy(path)["script-src"]


def test_a_host_that_is_not_allowed_adds_nothing() -> None:
    assert policy(HTTP_HOST="evil.example; script-src *")["connect-src"].strip() == "'self'"
