"""Which connections a sandbox may make: the endpoints granted, and which addresses are public. Pure."""

import ipaddress
from dataclasses import dataclass

from gpu_workers.contracts.environment import Endpoint, NetworkAccess, NetworkMode, parse_endpoint

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
NAT64 = ipaddress.ip_network("64:ff9b::/96")


class ReachError(ValueError):
    """A connection that is refused; the message says why."""


@dataclass(frozen=True)
class Reach:
    """The rule of one sandbox's proxy. `private` holds endpoints whose addresses may be private."""

    mode: NetworkMode
    allowed: frozenset[Endpoint] = frozenset()
    private: frozenset[Endpoint] = frozenset()

    @classmethod
    def of(cls, access: NetworkAccess, private: frozenset[Endpoint]) -> "Reach":
        return cls(access.mode, frozenset(map(parse_endpoint, access.allow)), private)

    def check_endpoint(self, endpoint: Endpoint) -> None:
        """Raise ReachError unless the name and port are granted."""
        if self.mode is NetworkMode.NONE or (self.mode is NetworkMode.ALLOWLIST and endpoint not in self.allowed):
            raise ReachError(f"{endpoint} is not on the contract's allow-list")

    def check_address(self, endpoint: Endpoint, address: Address) -> None:
        """Raise ReachError unless the address that the name stands for may be connected to."""
        real = embedded(address)
        never = real.is_link_local or real.is_multicast or real.is_unspecified
        if never or not (real.is_global or endpoint in self.private):
            raise ReachError(f"{endpoint} is at {address}, which is not a public address")


def embedded(address: Address) -> Address:
    """The IPv4 address that an IPv6 address leads to, where it is only a wrapping of one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.sixtofour is not None:
        return address.sixtofour
    return address.teredo[1] if address.teredo is not None else address
