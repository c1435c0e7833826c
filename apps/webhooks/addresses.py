"""Where a webhook may be sent: to public addresses, and to the private networks that WEBHOOK_NETWORKS names."""

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from django.conf import settings

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_SIXTOFOUR = ipaddress.ip_network("2002::/16")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class RefusedAddress(Exception):
    """An address that nothing is sent to; says which and why."""


def check_url(url: str) -> str:
    """Why the URL cannot be a webhook's, as far as it can be told without asking a name server; empty: it can."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        return f"is no URL: {error}"
    if parts.scheme not in ("https", "http") or not host:
        return "must be an https:// address"
    if parts.username or parts.password:
        return "must not hold a user name or password: check the signature instead"
    if parts.scheme == "http" and not settings.WEBHOOK_NETWORKS:
        return "must begin with https://"
    try:
        check_address(host)
    except RefusedAddress as refused:
        return str(refused)
    except ValueError:
        return "" if host not in ("localhost", "localhost.localdomain") else "names this machine"
    return ""


def resolve(host: str, port: int) -> str:
    """An address of the host that may be connected to. Raises RefusedAddress if any of them may not, or OSError.

    The caller connects to exactly this address: a name that resolves differently a moment later changes nothing.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    for address in addresses:
        check_address(address)
    return addresses[0]


def check_address(text: str) -> None:
    """Raise RefusedAddress for an address that is neither public nor in a named network; ValueError for a name."""
    address = ipaddress.ip_address(text.partition("%")[0])
    inner = list(_embedded(address))
    if all(candidate.is_global and not candidate.is_multicast for candidate in (address, *inner)):
        return
    if _named(inner[0] if inner else address):
        return
    raise RefusedAddress(f"{text} is not a public address: name its network in WEBHOOK_NETWORKS if it is meant")


def _named(address: Address) -> bool:
    networks = (ipaddress.ip_network(network) for network in settings.WEBHOOK_NETWORKS)
    return any(address in network for network in networks)


def _embedded(address: Address) -> Iterable[Address]:
    """IPv4 addresses that an IPv6 address leads to."""
    if isinstance(address, ipaddress.IPv4Address):
        return
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    if address in _SIXTOFOUR and address.sixtofour is not None:
        yield address.sixtofour
    if address in _NAT64:
        yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
