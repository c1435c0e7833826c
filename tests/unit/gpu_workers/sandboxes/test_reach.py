"""Which addresses are public, however they are written."""

import ipaddress

import pytest

from gpu_workers.contracts.environment import NetworkAccess, NetworkMode, parse_endpoint
from gpu_workers.sandboxes.reach import Reach, ReachError

EVERYTHING = Reach(NetworkMode.FULL)
HOST = parse_endpoint("a.org:443")


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "2001:4860:4860::8888", "2a00::1", "64:ff9b::101:101",
     "::ffff:1.1.1.1"],
)  # fmt: skip
def test_public(address):
    EVERYTHING.check_address(HOST, ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "224.0.0.1", "255.255.255.255", "198.18.0.1", "192.0.2.1", "240.0.0.1", "::1", "::", "fe80::1", "fc00::1",
        "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::1",
        "2002:a00:1::", "2001:db8::1", "2001:0:4136:e378:8000:63bf:f5ff:fffe",
        # However a private IPv4 address is wrapped, and whatever of IPv6 is not given out.
        "2002:101:101::1", "64:ff9b:1::7f00:1", "64:ff9b:1::101:101", "64:ff9b::c0a8:101", "::127.0.0.1", "::1.1.1.1",
        "::ffff:0:127.0.0.1", "::ffff:0:1.1.1.1", "fec0::1", "fd00::1", "febf::1", "100::1", "100:0:0:1::1", "200::1",
        "4000::1", "5f00::1", "8000::1", "e000::1", "3fff::1", "3fff:fff::1", "2001:2::1", "2001:10::1", "2001:20::1",
        "2001:1::1", "2001:30::1", "ff0e::1", "192.88.99.1", "192.0.0.8", "192.168.255.255", "198.19.0.1",
        "2a00::5efe:7f00:1", "2a00::200:5efe:a00:1",
        "203.0.113.1", "198.51.100.1", "0.1.2.3", "172.31.255.255", "100.127.255.255", "239.1.1.1",
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


def test_the_hosts_own_addresses_are_refused_but_for_what_the_worker_names():
    address = ipaddress.ip_address("1.1.1.1")
    with pytest.raises(ReachError, match="an address of the worker's own host"):
        EVERYTHING.check_address(HOST, address, is_own=True)
    Reach(NetworkMode.FULL, private=frozenset({HOST})).check_address(HOST, address, is_own=True)


@pytest.mark.parametrize("address", ["1.1.1.1", "::ffff:1.1.1.1", "64:ff9b::101:101", "2606:4700::1"])
def test_ranges_that_the_host_denies(address):
    denied = (ipaddress.ip_network("1.1.1.0/24"), ipaddress.ip_network("2606:4700::/32"))
    reach = Reach.of(NetworkAccess(mode=NetworkMode.FULL), frozenset(), denied)
    with pytest.raises(ReachError, match="SANDBOX_NETWORK_DENY"):
        reach.check_address(HOST, ipaddress.ip_address(address))
    reach.check_address(HOST, ipaddress.ip_address("1.1.2.1"))
