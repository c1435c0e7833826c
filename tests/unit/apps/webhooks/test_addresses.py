"""Nothing is sent to a private address: not by name, not by number, not after a redirect or a second look-up."""

import socket

import pytest

from apps.webhooks import addresses, sending
from apps.webhooks.addresses import RefusedAddress, check_address, check_url
from apps.webhooks.delivering import deliver
from apps.webhooks.models import Delivery
from apps.webhooks.services import send_test

PRIVATE = [
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1",
    "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "::ffff:10.0.0.1", "2002:7f00:1::", "64:ff9b::a00:1",
    "ff02::1", "fec0::1", "::127.0.0.1", "::1.1.1.1", "64:ff9b:1::7f00:1", "64:ff9b:1::101:101", "64:ff9b::7f00:1",
    "::ffff:0:127.0.0.1", "2a00::5efe:7f00:1", "2a00::200:5efe:a00:1", "3fff::1", "5f00::1", "2002:101:101::1",
    "2001:0:4136:e378:8000:63bf:f5ff:fffe", "2001:db8::1", "4000::1", "100::1", "192.88.99.1",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_public_are_refused(address):
    with pytest.raises(RefusedAddress, match="not a public address"):
        check_address(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::101:101", "::ffff:1.1.1.1"])
def test_public_addresses_are_not(address):
    check_address(address)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://example.org/x", "https://"), ("https://", "https://"), ("http://example.org/x", "begin with https://"),
        ("https://u:p@example.org/", "user name"), ("https://10.0.0.1/", "not a public"),
        ("https://[::1]/", "not a public"),
        ("https://localhost/", "this machine"), ("https://example.org:99999/", "no URL"), ("javascript:alert(1)", "https://"),
        ("https://[", "no URL"), ("https://example.org/\u00e9", "visible ASCII"), ("https://ex\u00e4mple.org/", "xn--"),
        ("https://\u2460\u2461\u2466.0.0.1/", "visible ASCII"), ("https://example.org/a b", "visible ASCII"),
        ("https://exam\tple.org/", "visible ASCII"), (" https://example.org/", "visible ASCII"),
        ("https://example..org/", "no host name"), ("https://.example.org/", "no host name"),
        (f"https://{'a' * 64}.org/", "no host name"), (f"https://{'a.' * 130}org/", "no host name"),
        ("https://-a.org/", "no host name"), ("https://a\\b.org/", "no host name"),
        ("https://example.org:0/", "port 0"), ("https://localhost./", "this machine"),
        ("https://[fec0::1]/", "not a public"), ("https://0/", "not a public"),
        ("https://2130706433/", "not a public"), ("https://0x7f.1/", "not a public"),
        ("https://127.1/", "not a public"),
        ("https://0177.0.0.1/", "not a public"), ("https://example.org/#part", "after #"),
    ],
)  # fmt: skip
def test_a_url_that_can_be_told_to_lead_there_is_refused_at_once(url, words):
    assert words in check_url(url)
    for good in ("https://example.org/hook", "https://xn--exmple-cua.org/%C3%A9", "https://example.org.:8443/?a=b"):
        assert check_url(good) == ""


def test_a_named_network_is_open(settings):
    settings.WEBHOOK_NETWORKS = ["10.1.0.0/16"]
    check_address("10.1.2.3")
    check_address("::ffff:10.1.2.3")
    for other in ("10.2.0.1", "127.0.0.1"):
        with pytest.raises(RefusedAddress):
            check_address(other)


def test_a_name_that_leads_to_a_private_address_is_not_connected_to(webhook, engineer, receiver, settings):
    """The name's address is looked up and checked at every attempt, whatever it was when the webhook was made."""
    settings.WEBHOOK_NETWORKS = []
    delivery = send_test(webhook=webhook, by=engineer)
    answer = deliver(delivery.pk)
    assert answer is not None and answer.status_code is None and "not a public address" in answer.error
    assert receiver.got == []
    assert "not a public address" in Delivery.objects.get().attempts.get().error


def test_a_second_look_up_with_another_answer_changes_nothing(receiver, settings, monkeypatch):
    """DNS rebinding: the first answer is public, the second one private. Only one is asked for, and that is used."""
    settings.WEBHOOK_NETWORKS = []
    asked: list[str] = []
    real = socket.getaddrinfo

    def rebinding(host, port, *args, **kwargs):
        if host != "rebind.example":
            return real(host, port, *args, **kwargs)
        asked.append(host)
        address = "93.184.216.34" if len(asked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    connected: list[str] = []

    def connect(address, *args, **kwargs):
        connected.append(address[0])
        raise OSError("the test reaches no network")

    monkeypatch.setattr(addresses.socket, "getaddrinfo", rebinding)
    monkeypatch.setattr(socket, "create_connection", connect)
    answer = sending.post(f"http://rebind.example:{receiver.port}/", b"{}", {})
    assert answer.status_code is None
    assert (asked, connected) == (["rebind.example"], ["93.184.216.34"])
    sending.post(f"http://rebind.example:{receiver.port}/", b"{}", {})
    assert connected == ["93.184.216.34"], "the private answer was refused before a connection"
    assert receiver.got == []


def test_of_several_addresses_all_must_be_public(monkeypatch):
    rows = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 443)) for ip in ("93.184.216.34", "10.0.0.1")]
    monkeypatch.setattr(addresses.socket, "getaddrinfo", lambda *_, **__: rows)
    with pytest.raises(RefusedAddress):
        addresses.resolve("mixed.example", 443)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(webhook, engineer, receiver, status):
    receiver.status, receiver.headers = status, {"Location": "http://169.254.169.254/latest/meta-data/"}
    answer = deliver(send_test(webhook=webhook, by=engineer).pk)
    assert answer is not None and not answer.delivered
    assert "redirects" in answer.error and len(receiver.got) == 1


def test_a_long_answer_is_cut(webhook, engineer, receiver):
    receiver.body = b"x" * 5_000_000
    answer = deliver(send_test(webhook=webhook, by=engineer).pk)
    assert answer is not None and answer.delivered and len(answer.response) == 1000


@pytest.mark.parametrize("body", [b"\x00\xff<script>", "ünïcode".encode()])
def test_what_is_answered_can_be_stored_and_shown(webhook, engineer, receiver, client, body):
    receiver.status, receiver.body = 500, body
    delivery = send_test(webhook=webhook, by=engineer)
    deliver(delivery.pk)
    client.force_login(engineer)
    page = client.get(f"/webhook-deliveries/{delivery.pk}/").content.decode()
    assert "answered 500" in page and "<script>" not in page.split("</head>")[1]


def test_an_address_where_nothing_listens_is_said(webhook, engineer, receiver):
    receiver.stop()
    answer = deliver(send_test(webhook=webhook, by=engineer).pk)
    assert answer is not None and answer.status_code is None and "cannot be connected to" in answer.error
