"""Where a webhook may be sent: to public addresses, and to the private networks that WEBHOOK_NETWORKS names."""

import ipaddress
import re
import socket
from urllib.parse import urlsplit

from django.conf import settings

from gpu_workers.contracts.addresses import Address, embedded, is_public

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_OLD_IPV4 = re.compile(r"(0[xX][0-9a-fA-F]+|[0-9]+)(\.(0[xX][0-9a-fA-F]+|[0-9]+)){0,3}")
_MAX_HOST = 253


class RefusedAddress(Exception):
    """An address that nothing is sent to; says which and why."""


def check_url(url: str) -> str:
    """Why the URL cannot be a webhook's, as far as it can be told without asking a name server; empty: it can."""
    if not all("!" <= letter <= "~" for letter in url):
        return "must be of visible ASCII characters: write other letters as %…, and in the host's name as xn--…"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        return f"is no URL: {error}"
    if parts.scheme not in ("https", "http") or not host:
        return "must be an https:// address"
    if parts.fragment:
        return "must not have a part after #, which is never sent"
    if parts.username or parts.password:
        return "must not hold a user name or password: check the signature instead"
    if port == 0:
        return "names port 0, where nothing listens"
    if parts.scheme == "http" and not settings.WEBHOOK_NETWORKS:
        return "must begin with https://"
    try:
        check_address(_written_out(host))
    except RefusedAddress as refused:
        return str(refused)
    except ValueError:
        return _check_name(host.removesuffix("."))
    return ""


def _written_out(host: str) -> str:
    """IPv4 in the older ways of writing it (0, 2130706433, 0x7f.1), which resolvers take too, in the usual one."""
    try:
        return socket.inet_ntoa(socket.inet_aton(host)) if _OLD_IPV4.fullmatch(host) else host
    except OSError:
        return host


def _check_name(host: str) -> str:
    if host in ("localhost", "localhost.localdomain"):
        return "names this machine"
    if len(host) > _MAX_HOST or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        return "has no host name: parts of 1 to 63 letters, digits and hyphens, with dots between them"
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
    address = embedded(ipaddress.ip_address(text.partition("%")[0]))
    if is_public(address) or _named(address):
        return
    raise RefusedAddress(f"{text} is not a public address: name its network in WEBHOOK_NETWORKS if it is meant")


def _named(address: Address) -> bool:
    networks = (ipaddress.ip_network(network) for network in settings.WEBHOOK_NETWORKS)
    return any(address in network for network in networks)
