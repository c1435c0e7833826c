"""What only a browser shows: the live page fills, decisions and labels work, nothing is refused by the CSP."""

from collections import deque

import pytest

from apps.accounts.models import Role
from apps.evaluations.gate_policies import DEFAULT_METRICS, create_gate_policy
from apps.evaluations.services import policy_arm, start_evaluation
from apps.policies.services import set_channel
from apps.promotions import jobs
from apps.promotions import messaging as promotion_messaging
from apps.promotions.models import Gate, GateState
from apps.promotions.services import open_gate
from apps.reviews import sampling
from apps.reviews import services as reviews
from apps.reviews.models import ItemState, Label, ReviewItem
from apps.runs.models import Group, Run, RunState
from gpu_workers.contracts.messages import Sampling
from tests.support.evaluations import Workers, committed, fill, make_policy, make_suite
from tests.support.plane import ScriptedPlane
from tests.support.scripted import Chaos
from tests.support.worlds import World, make_world, run_spec

pytestmark = pytest.mark.browser


@pytest.fixture
def world(server) -> World:
    return make_world()


@pytest.fixture
def gate(world, monkeypatch) -> Gate:
    """A passed gate that waits for a decision."""
    computes: deque = deque()
    monkeypatch.setattr(promotion_messaging, "request_verdict", computes.append)
    workers = Workers(monkeypatch)
    suite = make_suite(world.project, slug="tools", heldout=80, regression=8)
    incumbent, candidate = make_policy(world.project, "incumbent"), make_policy(world.project, "candidate")
    channel = set_channel(project=world.project, name="production", policy=incumbent, by=None)
    loose = {"required": True, "margin": 0.1}
    rules = {**DEFAULT_METRICS, "tamper": loose, "invalid_tool_calls": loose}
    policy = create_gate_policy(project=world.project, slug="default", by=None, metrics=rules)
    with committed():
        gate = open_gate(
            project=world.project, channel=channel, candidate=candidate, gate_policy=policy, suite=suite,
            by=world.engineer,
        )  # fmt: skip

    def outcome(task, adapter, index):
        number = int(task.key.split("-")[1])
        return {"success": number < 70 if adapter == candidate.engine_name else number % 10 < 3, "total_seconds": 2.0}

    fill(gate.evaluation, outcome)
    workers.answer_fleet()
    while computes:
        with committed():
            jobs.compute(str(computes.popleft()))
    gate.refresh_from_db()
    assert gate.verdict == "pass"
    return gate


@pytest.fixture
def queue(world, monkeypatch) -> int:
    """Every episode of a small evaluation waits for a label. Gives their number."""
    monkeypatch.setattr(sampling, "RANDOM_SLICE_EVALUATION", 1.0)
    workers = Workers(monkeypatch)
    suite = make_suite(world.project, slug="tools", heldout=3)
    with committed():
        start_evaluation(
            project=world.project, suite=suite, split="heldout", purpose="baseline", samples=1, by=world.engineer,
            arms=[policy_arm(make_policy(world.project, "prompted", adapter=False))],
            sampling=Sampling(temperature=0.0),
        )  # fmt: skip
    workers.work()
    for group_id in workers.stored:
        reviews.sample_group(Group.objects.get(pk=group_id))
    return ReviewItem.objects.count()


def test_the_run_page_fills_while_the_run_goes_on(world, sign_in, monkeypatch):
    plane = ScriptedPlane(5, Chaos(zero_variance=0.2))
    plane.install(monkeypatch)
    run = plane.submit(world, run_spec(name="<b>bold</b>"))
    plane.play(until=lambda: Run.objects.get(pk=run.pk).step >= 1)
    visit = sign_in(world.engineer)
    visit.go(f"/runs/{run.pk}/")
    page = visit.page
    page.wait_for_selector("text=Live")
    step = page.locator("[data-strip] > div").nth(1).locator("[data-value]")
    assert step.inner_text() == "1"
    events = page.locator("[data-events] li").count()
    plane.play(until=lambda: Run.objects.get(pk=run.pk).state == RunState.TRAINED)
    visit.until("document.querySelectorAll('[data-strip] [data-value]')[0].textContent === '4'")
    visit.until("document.querySelector('[data-strip]').textContent.includes('Trained')")
    assert page.locator("[data-events] li").count() > events
    for chart in ("reward", "staleness", "gradient", "utilisation"):
        page.locator(f"#chart-{chart}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#chart-{chart} .main-svg")
    admitted = page.locator('[data-key="total"]').inner_text()
    assert "adds up" in admitted
    page.locator("#chart-reward summary").click()
    visit.until("document.querySelectorAll('#chart-reward tr').length >= 4")
    filled = page.locator("[data-strip]").inner_text()
    assert visit.refused() == []
    page.reload()  # and a reload shows the same, from the database
    assert page.locator("[data-strip]").inner_text() == filled
    assert page.locator('[data-key="total"]').inner_text() == admitted


def test_holding_the_view_stops_redraws_until_it_is_let_go(world, sign_in, monkeypatch):
    plane = ScriptedPlane(5)
    plane.install(monkeypatch)
    run = plane.submit(world, run_spec())
    plane.play(until=lambda: Run.objects.get(pk=run.pk).step >= 1)
    visit = sign_in(world.engineer)
    visit.go(f"/runs/{run.pk}/")
    visit.page.wait_for_selector("text=Live")
    visit.click("text=Hold view")
    plane.play(until=lambda: Run.objects.get(pk=run.pk).step >= 3)
    visit.page.wait_for_timeout(6000)  # longer than the page waits before it asks
    value = "document.querySelectorAll('[data-strip] [data-value]')[0].textContent"
    assert visit.page.evaluate(value) == "1"
    visit.click("text=Resume view")
    visit.until(f"Number({value}) >= 3")


def test_a_run_is_cancelled_from_its_page(world, sign_in, monkeypatch):
    plane = ScriptedPlane(5)
    plane.install(monkeypatch)
    run = plane.submit(world, run_spec())
    plane.play(until=lambda: Run.objects.get(pk=run.pk).step >= 1)
    visit = sign_in(world.engineer)
    visit.go(f"/runs/{run.pk}/")
    visit.click("text=Cancel…")
    visit.page.fill("#cancel-reason", "wrong suite")
    visit.click("dialog button[type=submit]")
    visit.page.wait_for_selector("h1:has-text('Cancelled')")
    run.refresh_from_db()
    assert run.state == RunState.CANCELLED
    assert "wrong suite" in run.status_message


def test_a_gate_is_approved_in_the_browser_and_rolled_back(world, gate, sign_in):
    visit = sign_in(world.users[Role.APPROVER])
    page = visit.page
    visit.click("text=Promote candidate?")
    page.wait_for_selector("h1:has-text('Better on held-out tasks')")
    visit.loaded()
    visit.click("text=recompute")
    page.wait_for_selector("text=the stored episodes are still those of the verdict")
    page.check("input[value=reject]")
    visit.click("form[data-decide] button[type=submit]")
    assert "at least 10 characters" in page.inner_text("#reason-e")
    page.check("input[value=approve]")
    visit.click("form[data-decide] button[type=submit]")
    page.wait_for_selector("h2:has-text('Decided')")
    visit.loaded()
    gate.refresh_from_db()
    assert gate.state == GateState.DECIDED
    gate.channel.refresh_from_db()
    assert gate.channel.policy.slug == "candidate"
    page.fill("#back-reason", "complaints from users")
    visit.click("text=Roll back >> nth=-1")
    page.wait_for_selector("text=It was replaced since: incumbent serves now.")
    gate.channel.refresh_from_db()
    assert gate.channel.policy.slug == "incumbent"


def test_labels_are_given_undone_and_skipped_by_keyboard(world, queue, sign_in):
    visit = sign_in(world.users[Role.REVIEWER])
    visit.go("/review/")
    page = visit.page
    item = "document.querySelector('form[data-review]')?.dataset.review"
    first = page.evaluate(item)
    page.keyboard.press("2")  # No
    page.keyboard.press("2")  # it cheats
    page.fill("#comment", "typed 1 s u")  # keys are off while typing
    page.keyboard.press("Control+Enter")
    visit.until(f"{item} && {item} !== '{first}'")
    visit.loaded()
    label = Label.objects.get()
    assert (str(label.item_id), label.verdict, label.hacking) == (first, "fail", True)
    assert label.comment == "typed 1 s u"
    page.keyboard.press("u")
    visit.until(f"{item} === '{first}'")
    visit.loaded()
    label.refresh_from_db()
    assert label.undone_at is not None
    page.keyboard.press("s")
    visit.click("#skip button[type=submit]")
    visit.until(f"{item} !== '{first}'")
    assert ReviewItem.objects.get(pk=first).state == ItemState.SKIPPED
    visit.loaded()
    page.keyboard.press("?")
    page.wait_for_selector("#keys", state="visible")


def test_a_draft_survives_a_reload(world, queue, sign_in):
    visit = sign_in(world.users[Role.REVIEWER])
    visit.go("/review/")
    visit.page.keyboard.press("3")
    visit.page.fill("#comment", "half a thought")
    visit.page.reload()
    assert visit.page.input_value("#comment") == "half a thought"
    assert visit.page.is_checked("input[value=cannot_tell]")


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_every_page_keeps_to_the_csp_and_to_its_width(world, gate, every_path, sign_in, width, theme):
    visit = sign_in(world.users[Role.ADMIN], width=width, theme=theme)
    for path in every_path:
        visit.go(path)
        assert visit.refused() == [], path
        assert visit.too_wide() == [], path
        assert visit.page.locator("h1").count() == 1, path
        assert visit.page.evaluate("getComputedStyle(document.documentElement).colorScheme") in ("light dark", theme)


@pytest.fixture
def every_path(world, gate) -> list[str]:
    """One of every page."""
    episode = Group.objects.filter(evaluation_item__evaluation=gate.evaluation).first().episodes.first()
    suite = gate.evaluation.suite
    return [
        "/", "/suites/", f"/suites/{suite.pk}/", "/runs/", "/policies/", f"/policies/{gate.candidate.pk}/",
        f"/channels/{world.project.slug}/production/", "/gates/", f"/gates/{gate.pk}/", "/evaluations/",
        f"/evaluations/{gate.evaluation.pk}/", f"/groups/{episode.group_id}/", f"/episodes/{episode.pk}/",
        "/review/", "/review/rates/", "/audit/?verify=1", "/account/",
    ]  # fmt: skip


def test_the_theme_button_turns_light_to_dark_and_stays(world, sign_in):
    visit = sign_in(world.engineer)
    visit.click("[data-toggle-theme]")
    assert visit.page.evaluate("document.documentElement.dataset.theme") == "dark"
    visit.go("/runs/")
    assert visit.page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_thinning_keeps_spikes_and_csv_cells_are_never_formulas(world, sign_in):
    visit = sign_in(world.engineer)
    thinned = visit.page.evaluate(
        """async () => {
            const { thin } = await import("/static/js/thin.js");
            const x = Array.from({ length: 100000 }, (_, i) => i);
            const y = x.map((i) => i === 70001 ? 9 : i === 30003 ? -9 : Math.sin(i));
            const all = thin(x, [y, undefined]);
            const part = thin(x, [y], [70000, 70400]);
            return { n: all.x.length, high: Math.max(...all.rows[0]), low: Math.min(...all.rows[0]),
                     sorted: all.x.every((v, i) => !i || v > all.x[i - 1]), other: all.rows[1] ?? null,
                     part: part.x.length };
        }"""
    )
    assert thinned == {"n": thinned["n"], "high": 9, "low": -9, "sorted": True, "other": None, "part": 401}
    assert thinned["n"] <= 1000
    cells = visit.page.evaluate(
        """async () => {
            const { csvCell } = await import("/static/js/charts.js");
            return ["=1+1", "@x", "-2", -2, 'a"b', "a,b", null].map(csvCell);
        }"""
    )
    assert cells == ["'=1+1", "'@x", "'-2", "-2", '"a""b"', '"a,b"', "null"]
