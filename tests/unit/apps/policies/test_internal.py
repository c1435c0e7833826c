"""What gateways ask: only with the secret, and exactly what the gateway reads."""

import msgspec
import pytest
from rest_framework.test import APIClient

from apps.accounts.services import issue_token, revoke_token
from apps.policies.models import Gateway
from apps.policies.services import set_channel
from gpu_workers.serving.control import ChannelBinding, Introspection


@pytest.fixture
def gateway(settings) -> APIClient:
    return APIClient(headers={"X-Ratchet-Worker-Secret": settings.RATCHET_WORKER_SECRET})


@pytest.fixture
def channel(project, policies):
    set_channel(project=project, name="base", policy=policies[0], by=None)
    return set_channel(project=project, name="production", policy=policies[1], by=None)


def test_without_the_secret_nothing_is_answered(channel, settings, gateway, admin_user):
    wrong = APIClient(headers={"X-Ratchet-Worker-Secret": "guess"})
    as_admin = APIClient()
    as_admin.force_login(admin_user)
    for client in (wrong, as_admin, APIClient()):
        assert client.get("/internal/channels").status_code == 403
        assert client.post("/internal/introspect", {"token": "x"}).status_code == 403
        assert client.post("/internal/ack", {}).status_code == 403
    assert gateway.get("/internal/channels").status_code == 200
    settings.RATCHET_WORKER_SECRET = ""
    assert APIClient(headers={"X-Ratchet-Worker-Secret": ""}).get("/internal/channels").status_code == 403


def test_channels_are_what_the_gateway_expects(channel, policies, gateway):
    rows = gateway.get("/internal/channels").json()["channels"]
    bare, adapted = [msgspec.convert(row, ChannelBinding) for row in rows]
    assert (bare.model, bare.adapter, bare.num_shots, bare.epoch) == ("demo/base", "", 2, 1)
    assert (adapted.policy, adapted.base_model) == ("supervised", "tiny")
    assert (adapted.adapter, adapted.adapter_uri) == (policies[1].engine_name, "runs/supervised")
    assert adapted.adapter_sha256 == "s" * 64


def test_introspection_follows_the_token(channel, engineer, gateway):
    issued = issue_token(user=engineer, name="app", by=engineer)
    answer = gateway.post("/internal/introspect", {"token": issued.secret}).json()
    found = msgspec.convert(answer, Introspection)
    assert (found.active, found.user, found.projects) == (True, "ed", ["demo"])
    assert answer["expires_at"] is not None
    revoke_token(token=issued.token, by=engineer)
    assert gateway.post("/internal/introspect", {"token": issued.secret}).json()["active"] is False


def test_acknowledgements_are_kept(channel, gateway):
    body = {"gateway": "g1", "project": "demo", "channel": "production", "epoch": 1}
    assert gateway.post("/internal/ack", body).status_code == 200
    assert gateway.post("/internal/ack", body).status_code == 200
    assert Gateway.objects.get().acknowledged_epoch == 1
    assert gateway.post("/internal/ack", {**body, "channel": "none"}).status_code == 404
    assert gateway.post("/internal/ack", {**body, "epoch": -1}).json()["errors"][0]["path"] == "epoch"
