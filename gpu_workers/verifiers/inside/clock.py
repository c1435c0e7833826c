"""The clocks of a check: which of its parts measures time, and the processor's time that candidates used."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

WALL = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
PROCESSOR = ("process_time", "process_time_ns", "thread_time", "thread_time_ns")
SUBREAPER = 36  # of prctl: who loses its parents below this process becomes its child
TICKS = os.sysconf("SC_CLK_TCK")
# Modules whose reads measure nothing of a check: ours, and the library's own but for timeit.
OTHERS = {"gpu_workers", *getattr(sys, "stdlib_module_names", ("unittest", "threading", "logging"))} - {"timeit"}


class Watch:
    """`read`: a clock was read since it was last set to False."""

    def __init__(self) -> None:
        self.read = False
        self.installed = False

    def install(self) -> None:
        """See reads by others than this package from now on. Processor time then counts the candidates' as well."""
        if self.installed:
            return
        self.installed = True
        with contextlib.suppress(Exception):  # without it, who leaves its parents behind is counted no more
            ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
        for name in WALL:
            setattr(time, name, self._seen(getattr(time, name)))
        for name in PROCESSOR:
            setattr(time, name, self._seen(_with_children(getattr(time, name), name.endswith("_ns"))))

    def _seen(self, clock: Callable[[], Any]) -> Any:
        def read() -> Any:
            if str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0] not in OTHERS:
                self.read = True
            return clock()

        return read


def _with_children(own: Callable[[], Any], in_nanoseconds: bool) -> Callable[[], Any]:
    return lambda: own() + (int(1e9 * descendants_seconds()) if in_nanoseconds else descendants_seconds())


def descendants_seconds() -> float:
    """Processor time of all processes below this one, also of those that ended, as the kernel has it."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    found: dict = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError), open("/proc/" + name + "/stat", "rb") as file:  # noqa: PTH123
                fields = file.read().rpartition(b")")[2].split()  # behind the name: state, parent, ...
                found[int(name)] = int(fields[1]), *map(int, fields[11:15])
    below, seconds = {os.getpid()}, ended.ru_utime + ended.ru_stime
    while more := {pid for pid, (parent, *_) in found.items() if parent in below} - below:
        below |= more
        for pid in more:
            _, user, system, *of_children = found[pid]
            seconds += sum(of_children) / TICKS + (_precisely(pid) or (user + system) / TICKS)
    return seconds


def _precisely(pid: int) -> float:
    """Processor time of another process without its children; 0 where it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # its clock, by the kernel's numbering (CPUCLOCK_SCHED)
    except OSError:
        return 0.0


WATCH = Watch()
