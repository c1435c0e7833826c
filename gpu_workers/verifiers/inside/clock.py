"""The clocks of a check: which of its parts measures time, and the processor's time that candidates used."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

WALL = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
# Modules whose reads measure nothing of a check: ours, and the library's own but for timeit.
OTHERS = {"gpu_workers", *getattr(sys, "stdlib_module_names", ("unittest", "threading", "logging"))} - {"timeit"}


class Watch:
    """`read`: a clock was read since it was last set to False. `used`: processor time of candidates, seconds."""

    def __init__(self) -> None:
        self.read = False
        self.used: Callable[[], float] = lambda: 0.0
        self.installed = False

    def install(self, used: Callable[[], float]) -> None:
        """See reads by others than this package from now on. Processor time then counts the candidates' as well."""
        self.used = used
        if self.installed:
            return
        self.installed = True
        for name in WALL:
            setattr(time, name, self._seen(getattr(time, name)))
        own, own_ns = time.process_time, time.process_time_ns
        time.process_time = self._seen(lambda: own() + self.used())
        time.process_time_ns = self._seen(lambda: own_ns() + int(1e9 * self.used()))

    def _seen(self, clock: Callable[[], Any]) -> Any:
        def read() -> Any:
            if str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0] not in OTHERS:
                self.read = True
            return clock()

        return read


def processor_seconds(pid: int) -> float:
    """Processor time of another process; 0 where it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # its clock, by the kernel's numbering (CPUCLOCK_SCHED)
    except OSError:
        return 0.0


WATCH = Watch()
