"""Which addresses are public, however they are written."""

import ipaddress

import pytest

from gpu_workers.contracts.environment import NetworkAccess, NetworkMode, parse_endpoint
from gpu_workers.sandboxes.reach import Reach, ReachError

EVERYTHING = Reach(NetworkMode.FULL)
HOST = parse_endpoint("a.org:443")


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "64:ff9b::101:101"])
def test_public(address):
    EVERYTHING.check_address(HOST, ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "224.0.0.1", "255.255.255.255", "198.18.0.1", "192.0.2.1", "240.0.0.1", "::1", "::", "fe80::1", "fc00::1",
        "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::1",
        "2002:a00:1::", "2001:db8::1", "2001:0:4136:e378:8000:63bf:f5ff:fffe",
    ],
)  # fmt: skip
def test_private_reserved_and_wrapped(address):
    with pytest.raises(ReachError, match="not a public address"):
        EVERYTHING.check_address(HOST, ipaddress.ip_address(address))


def test_a_host_that_the_worker_names_may_be_private_but_never_link_local():
    reach = Reach(NetworkMode.FULL, private=frozenset({HOST}))
    reach.check_address(HOST, ipaddress.ip_address("10.1.2.3"))
    for address in ("169.254.169.254", "fe80::1", "0.0.0.0"):
        with pytest.raises(ReachError):
            reach.check_address(HOST, ipaddress.ip_address(address))
    with pytest.raises(ReachError):
        reach.check_address(parse_endpoint("a.org:80"), ipaddress.ip_address("10.1.2.3"))


def test_endpoints_by_mode():
    allow = NetworkAccess(mode=NetworkMode.ALLOWLIST, allow=["A.org:443"])
    Reach.of(allow, frozenset()).check_endpoint(HOST)
    for text in ("a.org:80", "b.org:443", "a.org.evil.org:443"):
        with pytest.raises(ReachError, match="not on the contract's allow-list"):
            Reach.of(allow, frozenset()).check_endpoint(parse_endpoint(text))
    with pytest.raises(ReachError):
        Reach(NetworkMode.NONE).check_endpoint(HOST)
    EVERYTHING.check_endpoint(HOST)
