"""Which connections a sandbox may make: the endpoints granted, and which addresses are public. Pure.

Public is what IANA's registries say can be reached from anywhere (RFC 6890 and what was assigned since): of IPv6 what
has ever been given out, less what is named here.
"""

import ipaddress
from dataclasses import dataclass

from gpu_workers.contracts.environment import Endpoint, NetworkAccess, NetworkMode, parse_endpoint

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Range = ipaddress.IPv4Network | ipaddress.IPv6Network
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # the one prefix that leads to public IPv4 alone (RFC 6052)
GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")  # all that has ever been given out
# Within the global ranges, and not for everybody: protocol assignments with Teredo, benchmarks and ORCHID;
# documentation; 6to4 and its relays, which lead to addresses that nobody has looked at; AS112's sinks.
NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20",
            "192.0.0.0/24", "192.88.99.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24",
        ),
    )
)  # fmt: skip


class ReachError(ValueError):
    """A connection that is refused; the message says why."""


@dataclass(frozen=True)
class Reach:
    """The rule of one sandbox's proxy.

    `private` holds endpoints that may be reached although their addresses are not public or are the host's own;
    `denied` are ranges that count as not public here.
    """

    mode: NetworkMode
    allowed: frozenset[Endpoint] = frozenset()
    private: frozenset[Endpoint] = frozenset()
    denied: tuple[Range, ...] = ()

    @classmethod
    def of(cls, access: NetworkAccess, private: frozenset[Endpoint], denied: tuple[Range, ...] = ()) -> "Reach":
        return cls(access.mode, frozenset(map(parse_endpoint, access.allow)), private, denied)

    def check_endpoint(self, endpoint: Endpoint) -> None:
        """Raise ReachError unless the name and port are granted."""
        if self.mode is NetworkMode.NONE or (self.mode is NetworkMode.ALLOWLIST and endpoint not in self.allowed):
            raise ReachError(f"{endpoint} is not on the contract's allow-list")

    def check_address(self, endpoint: Endpoint, address: Address, *, is_own: bool = False) -> None:
        """Raise ReachError unless the address that the name stands for may be connected to.

        `is_own`: it is an address of this host, whatever its range.
        """
        real = embedded(address)
        if real.is_link_local or real.is_multicast or real.is_unspecified:
            raise ReachError(f"{endpoint} is at {address}, which is not a public address")
        if endpoint in self.private:
            return
        if not is_public(real):
            raise ReachError(f"{endpoint} is at {address}, which is not a public address")
        if is_own:
            raise ReachError(f"{endpoint} is at {address}, which is an address of the worker's own host")
        if any(real in denied for denied in self.denied):
            raise ReachError(f"{endpoint} is at {address}, which this host denies (SANDBOX_NETWORK_DENY)")


def is_public(address: Address) -> bool:
    """Whether anybody may reach an address that wraps no other."""
    if isinstance(address, ipaddress.IPv6Address) and address not in GLOBAL_UNICAST:
        return False
    return address.is_global and not any(address in network for network in NOT_PUBLIC)


def embedded(address: Address) -> Address:
    """The IPv4 address that a mapped or translated IPv6 address leads to; of every other kind the address itself."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address
