"""Headless Chromium against the real ASGI application, served by uvicorn from a thread of the test process."""

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from apps.accounts.models import User
from gpu_workers import jobs
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.settings import load_settings
from tests.support.serving import ServedApplication
from tests.support.worlds import World, make_world

CHROMIUM = os.environ.get("CHROMIUM", "") or shutil.which("chromium") or shutil.which("google-chrome") or ""
PASSWORD = "a long password"
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
_WATCH = (
    "window.refused = []; addEventListener('securitypolicyviolation', (e) => window.refused.push(e.violatedDirective));"
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[object]:
    """One browser a module; without Chromium or Playwright the tests are skipped."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine: install it or name it in CHROMIUM")
    # Playwright's sync API keeps a loop in this thread, which Django takes for async code.
    patch = pytest.MonkeyPatch()
    patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        yield browser
        browser.close()
    patch.undo()


@pytest.fixture
def server(transactional_db, settings, tmp_path: Path, monkeypatch) -> Iterator[str]:
    """Base URL of the application; pages learn of news by asking, as the test's thread cannot push."""
    from apps.metrics import announcer

    monkeypatch.setattr(announcer, "get_channel_layer", lambda: None)
    settings.OBJECT_STORE_URL = f"file://{tmp_path / 'objects'}"
    settings.ALLOWED_HOSTS = ["127.0.0.1"]
    with ServedApplication() as served:
        yield served.url


class Visit:
    """A signed-in tab that remembers what it complained about."""

    def __init__(self, page, base: str) -> None:
        self.page, self.base = page, base
        self.complaints: list[str] = []
        page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def go(self, path: str) -> None:
        self.page.goto(self.base + path, wait_until="load")

    def loaded(self) -> None:
        """Wait until the scripts of the present page have run: keys and buttons answer from then on."""
        self.until("document.readyState === 'complete'")

    def click(self, selector: str) -> None:
        """Click what is there or comes, once the scripts of its page have run."""
        self.page.locator(selector).first.wait_for(state="visible")
        self.loaded()
        self.page.click(selector)

    def until(self, expression: str, seconds: float = 20) -> None:
        """Wait until a JavaScript expression holds. (Playwright's own way needs eval, which the CSP refuses.)"""
        deadline = time.monotonic() + seconds
        while not self._holds(expression):
            assert time.monotonic() < deadline, f"never true: {expression}"
            self.page.wait_for_timeout(100)

    def too_wide(self) -> list[str]:
        """The elements that make the page scroll sideways, outermost first."""
        return self.page.evaluate(
            "document.documentElement.scrollWidth <= innerWidth ? [] : ['the page',"
            " ...[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth"
            " && !e.closest('.scroll, .fit, pre')).map(e => e.tagName + '.' + e.className + ': '"
            " + e.textContent.slice(0, 60))].slice(0, 8)"
        )

    def _holds(self, expression: str) -> bool:
        from playwright.sync_api import Error

        try:
            return bool(self.page.evaluate(expression))
        except Error as error:
            if "navigation" in str(error) or "properties of null" in str(error):
                return False  # the page is just being loaded anew
            raise

    def refused(self) -> list[str]:
        """Directives of the CSP that the present page violated."""
        return self.page.evaluate("window.refused")


@pytest.fixture
def sign_in(chromium, server) -> Iterator[Callable[..., Visit]]:
    """Sign a user in by the form. At the end no tab may have complained."""
    visits: list[Visit] = []

    def make(user: User, *, width: int = 1440, theme: str = "light") -> Visit:
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        context.set_default_timeout(15_000)
        context.add_init_script(_WATCH)
        visit = Visit(context.new_page(), server)
        visits.append(visit)
        visit.go("/accounts/login/")
        visit.page.fill("#id_username", user.username)
        visit.page.fill("#id_password", PASSWORD)
        visit.page.click("main button[type=submit]")
        visit.page.wait_for_url(server + "/", wait_until="load")
        return visit

    yield make
    complaints = [complaint for visit in visits for complaint in visit.complaints]
    for visit in visits:
        visit.page.context.close()
    assert complaints == []


@pytest.fixture
def worker_world(server, settings, tmp_path, monkeypatch) -> World:
    """With workers in this process, on the real sandbox; in a thread, as Playwright keeps a loop in this one."""
    run = asyncio.run
    with_thread = ThreadPoolExecutor(max_workers=1)
    monkeypatch.setattr(asyncio, "run", lambda coroutine: with_thread.submit(run, coroutine).result())
    try:
        asyncio.run(jobs.sandbox_backend().probe())
    except WorkerError as error:
        pytest.skip(str(error))
    worker = load_settings({"RATCHET_HOME": str(tmp_path), "OBJECT_STORE_URL": settings.OBJECT_STORE_URL})
    monkeypatch.setattr(jobs, "settings", lambda: worker)
    jobs.load_task.cache_clear()
    return make_world()
