"""People, invitations and webhooks in a browser: forms work, secrets are shown once, nothing scrolls sideways."""

import os
from pathlib import Path

import pytest

from apps.accounts.models import Membership, Role
from apps.webhooks.models import Delivery, DeliveryAttempt, Webhook
from apps.webhooks.services import create_webhook, send_test
from tests.support.worlds import World, make_world

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
SHOTS = os.environ.get("SHOTS", "")  # a folder: look at what was drawn


@pytest.fixture
def world(server) -> World:
    return make_world()


def shoot(visit, name: str) -> None:
    if SHOTS:
        visit.page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_the_pages_fit(world, sign_in, settings, width, theme):
    settings.OIDC_ORIGIN, settings.OIDC_NAME = "https://id.example.org", "Acme"
    settings.WEBHOOK_NETWORKS = ["10.0.0.0/8"]
    admin = world.users[Role.ADMIN]
    hook = create_webhook(
        project=world.project,
        url="https://example.org/hooks/a-long-path/of-a-team",
        events=["run:*", "gate:verdict"],
        by=admin,
    )
    delivery = send_test(webhook=hook, by=admin)
    DeliveryAttempt.objects.create(
        delivery=delivery,
        number=1,
        status_code=503,
        error="answered 503",
        response="<h1>no</h1>",
        duration_seconds=0.21,
    )
    DeliveryAttempt.objects.create(
        delivery=delivery, number=2, error="cannot be connected to: refused", duration_seconds=5.0
    )
    visit = sign_in(admin, width=width, theme=theme)
    pages = {
        "account": "/account/", "password": "/account/password/", "people": "/projects/lab/people/",
        "webhooks": "/projects/lab/webhooks/", "webhook": f"/webhooks/{hook.pk}/",
        "delivery": f"/webhook-deliveries/{delivery.pk}/",
    }  # fmt: skip
    for name, path in pages.items():
        visit.go(path)
        shoot(visit, f"{name}-{theme}")
        assert visit.too_wide() == [], name
        assert visit.refused() == [], name


def test_an_admin_invites_and_the_guest_comes_in(world, sign_in, chromium):
    visit = sign_in(world.users[Role.ADMIN])
    visit.go("/projects/lab/people/")
    visit.page.fill("#email", "nina@example.org")
    visit.page.select_option("form.panel #role", "reviewer")
    visit.click("text=Make the link")
    link = visit.page.inner_text("code.secret")
    shoot(visit, "invited-light")
    guest = chromium.new_context().new_page()
    guest.goto(link)
    guest.fill("#id_username", "nina")
    guest.fill("#id_password", "short")
    guest.click("text=Join >> nth=-1")
    assert "at least 12" in guest.inner_text("#password-e")
    if SHOTS:
        guest.screenshot(path=Path(SHOTS) / "invitation-light.png", full_page=True)
    guest.fill("#id_password", "seven green lamps")
    guest.click("main button.main")
    guest.wait_for_url("**/")
    assert Membership.objects.get(user__username="nina").role == "reviewer"
    guest.context.close()
    visit.go("/projects/lab/people/")
    assert visit.page.locator("code.secret").count() == 0
    assert "nina" in visit.page.inner_text("main")


def test_a_webhook_is_set_up_tried_and_removed(world, sign_in):
    visit = sign_in(world.engineer)
    visit.go("/projects/lab/people/")
    visit.click("text=Webhooks")
    visit.page.fill("#url", "https://10.0.0.1/hook")
    visit.click("text=Set it up")
    assert "not a public address" in visit.page.inner_text("#hook-e")
    visit.page.fill("#url", "https://example.org/hook")
    visit.click("text=Set it up")
    assert visit.page.inner_text("code.secret").startswith("whsec_")
    visit.click("td a")
    visit.click("text=Send a test")
    visit.page.wait_for_url("**/webhook-deliveries/**")
    assert Delivery.objects.count() == 1
    visit.go(f"/webhooks/{Webhook.objects.get().pk}/")
    visit.click("text=Remove with its log")
    visit.page.wait_for_url("**/webhooks/")
    assert not Webhook.objects.exists()
