"""Programs that reach for the kernel: its settings, its memory, namespaces, and calls that no tool needs."""

import ctypes
import mmap
import os
import platform

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_USER, NEW_NAMESPACES = 0x10000000, 0x00020000
NUMBERS = {
    "x86_64": {
        "unshare": 272, "setns": 308, "clone": 56, "mount": 165, "bpf": 321, "perf_event_open": 298,
        "userfaultfd": 323, "keyctl": 250, "name_to_handle_at": 303, "process_vm_readv": 310,
    },
    "aarch64": {
        "unshare": 97, "setns": 268, "clone": 220, "mount": 40, "bpf": 280, "perf_event_open": 241,
        "userfaultfd": 282, "keyctl": 219, "name_to_handle_at": 264, "process_vm_readv": 270,
    },
}[platform.machine()]  # fmt: skip
NUMBERS = {**NUMBERS, "io_uring_setup": 425, "clone3": 435, "open_tree": 428, "fsopen": 430}
SETTINGS = (
    "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches",
    "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper", "/sys/power/state",
    "/proc/sys/user/max_user_namespaces", "/proc/sys/net/ipv4/ip_forward",
)  # fmt: skip


def _call(name, *arguments):
    # Whole registers: of a shorter integer the upper half would be left to chance.
    wide = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    result = LIBC.syscall(NUMBERS[name], *wide)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


def open_core_pattern(_):
    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))
    return "opened for writing"


def open_settings(_):
    for path in SETTINGS:
        try:
            os.close(os.open(path, os.O_WRONLY))
        except OSError:
            continue
        return "opened " + path
    return ""


def read_kernel_memory(_):
    for path in ("/proc/kcore", "/dev/mem", "/proc/kmsg", "/proc/kpageflags"):
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            continue
        return "opened " + path
    return ""


def read_the_kernels_command_line(_):
    with open("/proc/cmdline") as file:
        return file.read().strip()


def read_the_kernels_configuration(_):
    with open("/proc/config.gz", "rb") as file:
        return f"{len(file.read())} bytes"


def read_the_kernels_symbols(_):
    with open("/proc/kallsyms") as file:
        return file.readline().strip()


def read_the_kernels_settings(_):
    found = []
    for path in ("kernel/random/boot_id", "kernel/core_pattern", "vm/swappiness", "fs/file-nr"):
        try:
            with open("/proc/sys/" + path) as file:
                found.append(file.read().strip())
        except OSError:
            continue
    return " ".join(found)


def read_the_hosts_load(_):
    with open("/proc/loadavg") as file:
        return file.read().strip()


def read_the_hosts_pressure(_):
    with open("/proc/pressure/cpu") as file:
        return file.read().strip()


def read_the_hosts_work(_):
    """What its processors, memory and disks do, by kind and device."""
    found = []
    for name in ("interrupts", "softirqs", "schedstat", "vmstat", "zoneinfo", "buddyinfo", "diskstats", "locks"):
        try:
            with open("/proc/" + name) as file:
                found.append(name if file.read(1) else "")
        except OSError:
            continue
    return " ".join(found).strip()


def list_the_hosts_devices(_):
    found = []
    for name in ("bus", "driver", "fs", "irq", "tty", "acpi", "scsi", "asound", "sys"):
        try:
            found += os.listdir("/proc/" + name)
        except OSError:
            continue
    for name in ("partitions", "swaps", "modules", "mdstat"):
        try:
            with open("/proc/" + name) as file:
                found.append(name if file.read(1) else "")
        except OSError:
            continue
    return " ".join(found).strip()


def open_memory_of_others(facts):
    for pid in (1, facts["victim"]):
        try:
            os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
        except OSError:
            continue
        return "opened"
    return ""


def list_sys(_):
    return " ".join(os.listdir("/sys"))


def see_host_processes(facts):
    for name in os.listdir("/proc"):
        try:
            with open("/proc/" + name + "/cmdline") as file:
                if name != str(os.getpid()) and facts["marker"] in file.read().split("\0"):
                    return "process " + name
        except OSError:
            continue
    return ""


def new_user_namespace(_):
    _call("unshare", NEW_USER)
    return "unshared"


def new_user_namespace_by_clone(_):
    pid = _call("clone", NEW_USER | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "cloned"


def new_process_by_clone3(_):
    arguments = (ctypes.c_uint64 * 11)(NEW_USER, 0, 0, 0, 17)
    pid = _call("clone3", ctypes.byref(arguments), ctypes.sizeof(arguments))
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "cloned"


def new_user_namespace_by_32_bit_call(_):
    code = bytes.fromhex("53 b8 36 01 00 00 bb 00 00 00 10 cd 80 5b c3")  # unshare(CLONE_NEWUSER) by int 0x80
    page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
                     prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)  # fmt: skip
    page.write(code)
    result = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    return "unshared" if result == 0 else ""


def join_a_namespace(facts):
    for pid in (1, facts["victim"], os.getpid()):
        for kind in ("net", "uts", "ipc"):
            try:
                _call("setns", os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY), 0)
            except OSError:
                continue
            return "joined"
    return ""


def mount_a_folder(_):
    _call("unshare", NEW_USER | NEW_NAMESPACES)
    os.mkdir("mounted")
    _call("mount", b"none", b"mounted", b"tmpfs", 0, None)
    return "mounted"


def mount_directly(facts):
    os.makedirs("mounted-directly", exist_ok=True)
    if facts["outside"]:  # in a mount namespace of its own, so that the host keeps nothing
        _call("unshare", NEW_USER | NEW_NAMESPACES)
    _call("mount", b"none", b"mounted-directly", b"tmpfs", 0, None)
    return "mounted"


def change_root(_):
    os.chroot("/tmp")
    return "changed"


def _sleeping_child():
    pid = os.fork()
    if pid == 0:
        import time

        time.sleep(5)
        os._exit(0)
    return pid


def trace_a_child(_):
    pid = _sleeping_child()
    try:
        if LIBC.ptrace(16, pid, 0, 0) < 0:
            raise OSError(ctypes.get_errno(), "ptrace")
        return "attached"
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def read_a_childs_memory(_):
    text = ctypes.create_string_buffer(b"secret")
    pid = _sleeping_child()
    try:
        found = ctypes.create_string_buffer(6)
        local = (ctypes.c_size_t * 2)(ctypes.addressof(found), 6)
        remote = (ctypes.c_size_t * 2)(ctypes.addressof(text), 6)
        _call("process_vm_readv", pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        return found.raw.decode()
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def load_a_program(_):
    attributes = (ctypes.c_uint32 * 16)(2, 4, 4, 1)  # an array map of one entry
    return "descriptor " + str(_call("bpf", 0, ctypes.byref(attributes), ctypes.sizeof(attributes)))


def count_events(_):
    attributes = (ctypes.c_uint64 * 16)(1 | (128 << 32), 0)  # a software counter: the CPU clock
    return "descriptor " + str(_call("perf_event_open", ctypes.byref(attributes), 0, -1, -1, 0))


def make_a_ring(_):
    parameters = (ctypes.c_uint8 * 120)()
    return "descriptor " + str(_call("io_uring_setup", 4, ctypes.byref(parameters)))


def handle_page_faults(_):
    return "descriptor " + str(_call("userfaultfd", 1))


def use_keyrings(_):
    return "keyring " + str(_call("keyctl", 0, -4, 1))  # KEYCTL_GET_KEYRING_ID of the user's keyring


def name_by_handle(_):
    handle = (ctypes.c_uint32 * 34)(128)
    mount = ctypes.c_int()
    _call("name_to_handle_at", -100, b"/usr/bin/env", ctypes.byref(handle), ctypes.byref(mount), 0)
    return "a handle"


def open_a_file_system(_):
    return "descriptor " + str(_call("fsopen", b"tmpfs", 0))


def call_what_is_newer_than_the_filter(_):
    """mseal of nothing at all: the newest call that every kernel from 6.10 on grants to everybody."""
    if LIBC.syscall(462, None, ctypes.c_size_t(0), ctypes.c_ulong(0)) != 0:
        raise OSError(ctypes.get_errno(), "mseal")
    return "sealed"
