"""Programs that take more than a contract grants. Each returns what it got away with: more than `facts["limits"]`."""

import ctypes
import mmap
import os
import signal
import socket
import threading
import time

MIB = 1 << 20
HOLD_SECONDS = 1.0  # long enough for a watcher that looks every 50 ms


def _children(count, work):
    """Fork children that work and then hold what they have; whether all of them did."""
    ready_read, ready_write = os.pipe()
    pids = []
    try:
        for _ in range(count):
            pid = os.fork()
            if pid == 0:
                try:
                    kept = work()
                    os.write(ready_write, b"x")
                    time.sleep(60)
                    del kept
                finally:
                    os._exit(0)
            pids.append(pid)
        os.close(ready_write)
        done = b""
        while len(done) < count and (part := os.read(ready_read, 100)):
            done += part
        time.sleep(HOLD_SECONDS)
        return len(done) == count and all(os.waitpid(pid, os.WNOHANG) == (0, 0) for pid in pids)
    finally:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except OSError:
                continue


def processes(facts):
    count = facts["limits"]["num_processes"] + 10
    return f"{count} processes" if _children(count, lambda: None) else ""


def threads(facts):
    count, stop = facts["limits"]["num_processes"] + 10, threading.Event()
    try:
        for _ in range(count):
            threading.Thread(target=stop.wait).start()
        return f"{count} threads"
    finally:
        stop.set()


def memory_of_one(facts):
    return "{} bytes".format(len(b"x" * (2 * facts["limits"]["memory_bytes"])))


def memory_of_many(facts):
    size = facts["limits"]["memory_bytes"] // 2
    return f"{6 * size} bytes" if _children(6, lambda: b"x" * size) else ""


def memory_without_a_process(facts):
    count = 2 * facts["limits"]["memory_bytes"] // MIB
    held = [os.memfd_create("x") for _ in range(count)]
    for fd in held:
        os.write(fd, b"x" * MIB)
    time.sleep(HOLD_SECONDS)
    return f"{count} MiB in memfds"


def memory_of_system_v(facts):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    size, numbers = facts["limits"]["memory_bytes"] // 2, []
    try:
        for _ in range(4):
            number = libc.shmget(0, size, 0o1600)
            if number < 0:
                raise OSError(ctypes.get_errno(), "shmget")
            numbers.append(number)
            place = libc.shmat(number, None, 0)
            ctypes.memset(place, 1, size)
            libc.shmdt(ctypes.c_void_p(place))
        time.sleep(HOLD_SECONDS)
        return f"{4 * size} bytes"
    finally:
        for number in numbers:
            libc.shmctl(number, 0, None)


def memory_hidden_from_counts(facts):
    size = facts["limits"]["memory_bytes"] // 2

    def hide():
        area = mmap.mmap(-1, size)  # shared and anonymous
        for start in range(0, size, 4096):
            area[start] = 1
            if start % MIB == 0:
                area.madvise(mmap.MADV_DONTNEED)  # leaves the process's count, not the memory
        area.madvise(mmap.MADV_DONTNEED)
        return area

    return f"{6 * size} bytes" if _children(6, hide) else ""


def memory_hidden_by_undumpable_processes(facts):
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    return memory_hidden_from_counts(facts)


def memory_in_sockets(facts):
    def fill():
        pairs = [socket.socketpair() for _ in range(100)]
        for one, _ in pairs:
            one.setblocking(False)
            try:
                while True:
                    one.send(b"x" * 65536)
            except BlockingIOError:
                continue
        return pairs

    return "1200 full sockets" if _children(6, fill) else ""


def memory_in_connections(facts):
    """TCP over loopback: a megabyte and more waits in each connection."""
    size = 2 * facts["limits"]["memory_bytes"]
    listener = socket.create_server(("127.0.0.1", 0))
    held, waiting = [], 0
    while waiting < size and len(held) < 110:
        one = socket.create_connection(listener.getsockname())
        held += [one, listener.accept()[0]]
        one.setblocking(False)
        idle = 0
        while idle < 3:
            try:
                waiting += one.send(b"x" * MIB)
                idle = 0
            except BlockingIOError:
                idle += 1
                time.sleep(0.005)
    time.sleep(HOLD_SECONDS)
    return f"{waiting} bytes" if waiting >= size else ""


def _fill(folder, size):
    path = os.path.join(folder, f"fill-{os.getpid()}")
    number = 0
    try:
        for number in range(size // MIB + 1):
            with open(path + str(number), "wb") as file:
                file.write(b"x" * MIB)
        return f"{size} bytes in {folder}"
    finally:
        for done in range(number + 1):
            if os.path.exists(path + str(done)):
                os.unlink(path + str(done))


def disk(facts):
    return _fill(os.getcwd(), 2 * facts["limits"]["disk_bytes"])


def temporary_files(facts):
    return _fill("/tmp", 2 * facts["limits"]["disk_bytes"])


def shared_memory_files(_):
    return _fill("/dev/shm", 24 * MIB)


def one_large_file(facts):
    with open("large", "wb") as file:
        file.truncate(4 * facts["limits"]["disk_bytes"])
    os.unlink("large")
    return "a sparse file"


def empty_files(_):
    os.mkdir("many")
    try:
        for number in range(22_000):
            os.close(os.open("many/" + str(number), os.O_CREAT))
        time.sleep(HOLD_SECONDS)
        return "22000 files"
    finally:
        for name in os.listdir("many"):
            os.unlink("many/" + name)
        os.rmdir("many")


def cpu_of_short_lived_children(facts):
    """Each child burns little and is gone before anybody looks."""
    wanted = facts["limits"]["cpu_seconds"] + 2
    deadline = time.monotonic() + 20 * wanted
    while sum(os.times()[2:4]) < wanted and time.monotonic() < deadline:
        pid = os.fork()
        if pid == 0:
            until = time.process_time() + 0.02
            while time.process_time() < until:
                pass
            os._exit(0)
        os.waitpid(pid, 0)
    return f"{wanted} s" if sum(os.times()[2:4]) >= wanted else ""


def output(_):
    for _ in range(300):
        os.write(1, b"x" * 65536)
    return "printed it all"
