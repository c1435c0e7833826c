"""Outlives the supervisor by a moment: when it is killed, ends what parent-death signals do not reach."""

import signal
import sys

from ratchet.services.marks import end_marked

SERVERS = frozenset({"postgres", "valkey"})  # the kernel has asked them to shut down cleanly


def main() -> None:
    """Wait for the end of standard input, which the supervisor holds open; then sweep."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while sys.stdin.buffer.read(1024):
        continue
    end_marked(sys.argv[1], spare=SERVERS)


if __name__ == "__main__":
    main()
