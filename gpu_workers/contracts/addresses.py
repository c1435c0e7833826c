"""Which addresses are public: the one rule of sandboxes and of webhooks. Pure.

Public is what IANA's registries say can be reached from anywhere (RFC 6890 and what was assigned since): of IPv6 what
has ever been given out, less what is named here.
"""

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
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
_ISATAP = (0x00005EFE, 0x02005EFE)  # before the IPv4 address that a tunnel leads to (RFC 5214)


def is_public(address: Address) -> bool:
    """Whether anybody may reach an address that wraps no other."""
    if isinstance(address, ipaddress.IPv6Address) and (
        address not in GLOBAL_UNICAST or (int(address) >> 32) & 0xFFFFFFFF in _ISATAP
    ):
        return False
    return address.is_global and not address.is_multicast and not any(address in network for network in NOT_PUBLIC)


def embedded(address: Address) -> Address:
    """The IPv4 address that a mapped or translated IPv6 address leads to; of every other kind the address itself."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address
