"""Which connections a sandbox may make: to the endpoints granted, at public addresses. Pure."""

import ipaddress
from dataclasses import dataclass

from gpu_workers.contracts.addresses import Address, embedded, is_public
from gpu_workers.contracts.environment import Endpoint, NetworkAccess, NetworkMode, parse_endpoint

Range = ipaddress.IPv4Network | ipaddress.IPv6Network


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
