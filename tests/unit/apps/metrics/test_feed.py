"""One feed a run: a slow page keeps nobody waiting, pages alike share a read, a taken right ends a page."""

import asyncio
import json

import pytest
from channels.db import database_sync_to_async
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.accounts.models import Membership
from apps.metrics import feed as feeds
from apps.metrics.feed import Feed
from apps.metrics.push import Page
from apps.metrics.selectors import Cursor
from apps.metrics.services import store_points
from apps.runs.models import Run
from apps.runs.services import submit_run
from tests.support.worlds import make_world, run_spec


class Watcher:
    """A watcher that takes its time when told to."""

    def __init__(self, user) -> None:
        self.user, self.cursor, self.mark = user, Cursor(), ""
        self.telling = None
        self.heard: list[list] = []
        self.open = asyncio.Event()
        self.open.set()
        self.ended = False

    async def tell(self, text: str) -> None:
        await self.open.wait()
        self.heard += json.loads(text)["points"]

    async def refused(self, code: int) -> None:
        self.ended = True

    async def told(self) -> None:
        if self.telling is not None:
            await self.telling


@pytest.fixture
def reads(monkeypatch) -> list[Cursor]:
    """From which cursor each read of the database was."""
    found: list[Cursor] = []
    real = Page.read

    def read(base, view, oldest: Cursor, encoded):
        found.append(oldest)
        return real(base, view, oldest, encoded)

    monkeypatch.setattr(Page, "read", read)
    return found


def world_with_run(monkeypatch) -> tuple:
    from apps.runs import messaging

    for name in ("send_rollout", "send_train", "send_fleet", "put", "request_advance", "request_dataset"):
        monkeypatch.setattr(messaging, name, lambda *_, **__: None)
    world = make_world()
    return world, submit_run(project=world.project, spec=run_spec(), by=world.engineer)


@database_sync_to_async
def log(run: Run, step: int) -> None:
    store_points(run, step, {"train/loss": 1.0}, measured=False, at=run.created_at)


@pytest.mark.django_db(transaction=True)
async def test_a_slow_page_gets_all_later_and_keeps_nobody_waiting(monkeypatch, reads):
    world, run = await database_sync_to_async(world_with_run)(monkeypatch)
    feed, quick, slow = Feed(str(run.pk)), Watcher(world.engineer), Watcher(world.engineer)
    slow.open.clear()
    for step in range(3):
        await log(run, step)
        await feed.answer({quick, slow})
        await quick.told()
    assert [point[2] for point in quick.heard] == [0, 1, 2]
    assert slow.heard == []
    assert feed._news.is_set()  # it comes back to the slow one by itself
    slow.open.set()
    await slow.told()
    await feed.answer({quick, slow})
    await slow.told()
    assert [point[2] for point in slow.heard] == [0, 1, 2]
    assert [point[2] for point in quick.heard] == [0, 1, 2]
    assert len(reads) == 4  # one each time, whatever the pages have seen


@pytest.mark.django_db(transaction=True)
async def test_a_right_that_is_taken_ends_the_page(monkeypatch, reads):
    world, run = await database_sync_to_async(world_with_run)(monkeypatch)
    feed, page, other = Feed(str(run.pk)), Watcher(world.engineer), Watcher(world.users["viewer"])
    await feed.answer({page, other})
    await page.told()
    await Membership.objects.filter(user=world.engineer).adelete()
    monkeypatch.setattr(feeds, "RIGHTS_SECONDS", 0.0)
    await log(run, 1)
    await feed.answer({page, other})
    await other.told()
    assert (page.ended, other.ended) == (True, False)
    assert (page.heard, len(other.heard)) == ([], 1)


@pytest.mark.django_db(transaction=True)
async def test_rights_of_many_pages_are_read_with_few_statements(monkeypatch):
    world, run = await database_sync_to_async(world_with_run)(monkeypatch)
    users = [*world.users.values()]
    viewers = {feeds._viewer(user): user for user in users}

    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert feeds._refusals(viewers, str(run.pk)) == {}
        return len(queries)

    assert len(viewers) > 3
    assert await database_sync_to_async(count)() <= 3
