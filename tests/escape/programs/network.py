"""Programs that reach for sockets of the host. Each returns what it reached."""

import socket

SECONDS = 2


def _talk(family, kind, address):
    with socket.socket(family, kind) as client:
        client.settimeout(SECONDS)
        client.connect(address)
        if kind == socket.SOCK_DGRAM:
            client.send(b"hello")
        return client.recv(100).decode()


def reach_localhost(facts):
    return _talk(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", facts["tcp_port"]))


def reach_localhost_by_ipv6(facts):
    return _talk(socket.AF_INET6, socket.SOCK_STREAM, ("::1", facts["tcp6_port"]))


def reach_localhost_by_datagram(facts):
    return _talk(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", facts["udp_port"]))


def reach_the_hosts_own_address(facts):
    return _talk(socket.AF_INET, socket.SOCK_STREAM, (facts["host_address"], facts["tcp_port"]))


def reach_an_abstract_socket(facts):
    return _talk(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + facts["abstract"])


def reach_a_socket_file(facts):
    return _talk(socket.AF_UNIX, socket.SOCK_STREAM, facts["socket_path"])


def open_netlink(_):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0):
        return "netlink"


def open_packet_socket(_):
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)):
        return "packet socket"


def open_raw_socket(_):
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP):
        return "raw socket"


def open_vsock(_):
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM):
        return "vsock"


def see_interfaces(_):
    with open("/proc/net/dev") as file:
        names = [line.split(":")[0].strip() for line in file.readlines()[2:]]
    return " ".join(name for name in names if name != "lo")


def see_the_hosts_sockets(facts):
    wanted = "{:04X}".format(facts["tcp_port"])
    with open("/proc/net/tcp") as file:
        return "listening port seen" if any(line.split()[1].endswith(wanted) for line in file.readlines()[1:]) else ""
