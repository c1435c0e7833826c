"""Rules of every page: no inline script or style, nothing marked safe, errors in the look of the pages."""

import re
from pathlib import Path

import pytest
from django.test import Client

from ratchet.env import ROOT

TEMPLATES = sorted((ROOT / "frontend" / "templates").rglob("*.html"))
SCRIPTS = sorted((ROOT / "frontend" / "static" / "js").glob("*.js"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_hold_no_inline_code_and_trust_no_text(path: Path):
    text = path.read_text()
    assert not re.search(r"\sstyle\s*=", text), "style attributes are refused by the CSP"
    assert not re.search(r"\son[a-z]+\s*=\s*[\"']", text), "event attributes are refused by the CSP"
    assert not re.search(r"\|\s*safe\b", text), "text is escaped, always"
    for tag in re.findall(r"<script[^>]*>", text):
        assert "src=" in tag or 'type="application/json"' in tag
    assert "<style" not in text


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_never_turn_data_into_markup(path: Path):
    text = path.read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)


def test_modules_that_others_import_do_nothing_by_themselves():
    """In production a module is loaded once by its hashed name and once by an import's plain name."""
    imported = {name for path in SCRIPTS for name in re.findall(r'from "\./([\w-]+\.js)"', path.read_text())}
    pages = "".join(path.read_text() for path in TEMPLATES)
    both = {name for name in imported if f"js/{name}" in pages}
    assert both == set()


def test_every_script_and_style_class_of_the_templates_exists():
    known = {path.name for path in SCRIPTS}
    used = set(re.findall(r"js/([\w-]+\.js)", "".join(path.read_text() for path in TEMPLATES)))
    assert used <= known
    imported = {name for path in SCRIPTS for name in re.findall(r'from "\./([\w-]+\.js)"', path.read_text())}
    assert known == used | imported, "a script that no page loads"


@pytest.mark.django_db
def test_an_unknown_address_is_a_page_with_its_status(client: Client):
    response = client.get("/nothing/here/")
    assert response.status_code == 404
    assert "There is nothing here that you may see" in response.content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "path", ["/", "/suites/", "/runs/", "/policies/", "/gates/", "/review/", "/audit/", "/evaluations/", "/account/"]
)
def test_pages_ask_strangers_to_sign_in_and_come_back(client: Client, path: str):
    response = client.get(path)
    assert response.status_code == 302
    assert response["Location"] == f"/accounts/login/?next={path}"


@pytest.mark.django_db
def test_a_refusal_of_the_api_stays_json(client: Client):
    response = client.get("/api/v1/runs/")
    assert response["Content-Type"] == "application/problem+json"


def test_a_broken_page_needs_nothing_to_say_so(client: Client, monkeypatch):
    from apps.accounts import views

    client.raise_request_exception = False
    monkeypatch.setattr(views.SignIn, "get_context_data", lambda *_, **__: 1 / 0)
    response = client.get("/accounts/login/")
    assert response.status_code == 500
    assert "Something broke on our side" in response.content.decode()
