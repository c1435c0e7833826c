"""The Content Security Policy of answers."""

import re

import pytest
from django.http import HttpResponse
from django.test import Client, RequestFactory

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
def test_api_documentation_may_write_styles_and_no_scripts(path: str) -> None:
    assert policy(path)["style-src"] == "'self' 'unsafe-inline'"
    assert policy(path)["script-src"] == "'self'"


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/api/docs/", "/api/redoc/"])
def test_api_documentation_has_no_inline_script_and_asks_no_other_host(path: str, client: Client) -> None:
    page = client.get(path).content.decode()
    scripts = re.findall(r"<script([^>]*)>([^<]*)", page)
    assert scripts and all(attributes.startswith(' src="/') and not text.strip() for attributes, text in scripts)
    assert "https://" not in page


def test_a_host_that_is_not_allowed_adds_nothing() -> None:
    assert policy(HTTP_HOST="evil.example; script-src *")["connect-src"] == "'self'"
