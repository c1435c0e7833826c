"""Programs that reach for other processes of the same user and for what they share."""

import ctypes
import os
import resource
import signal


def kill_a_process(facts):
    if not facts["outside"]:  # in a sandbox that means everything in sight
        for number in range(2, 5000):
            if number != os.getpid():
                try:
                    os.kill(number, signal.SIGKILL)
                except OSError:
                    continue
    os.kill(facts["victim"], signal.SIGKILL)
    return "killed"


def stop_a_process_by_descriptor(facts):
    fd = os.pidfd_open(facts["victim"])
    signal.pidfd_send_signal(fd, signal.SIGSTOP)
    return "stopped"


def limit_a_process(facts):
    resource.prlimit(facts["victim"], resource.RLIMIT_NOFILE, (5, 5))
    return "limited"


def bind_a_process(facts):
    os.sched_setaffinity(facts["victim"], {0})
    return "bound"


def slow_a_process_down(facts):
    os.setpriority(os.PRIO_PROCESS, facts["victim"], 19)
    return "slowed down"


def slow_everything_of_the_user_down(facts):
    os.setpriority(os.PRIO_USER, facts["victim_uid"] if facts["outside"] else 0, 19)
    if os.getpriority(os.PRIO_PROCESS, facts["victim"]) == 19:
        return "slowed down"
    return ""


def read_a_process(facts):
    with open("/proc/{}/environ".format(facts["victim"])) as file:
        return file.read()[:50]


def attach_shared_memory(facts):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    number = libc.shmget(facts["shm_key"], 0, 0)
    place = libc.shmat(number, None, 0o10000) if number >= 0 else -1
    if place in (-1, None, 2**64 - 1):
        raise OSError(ctypes.get_errno(), "shmat")
    return ctypes.string_at(place, 6).decode()


def read_named_memory(facts):
    with open("/dev/shm/" + facts["shm_name"]) as file:
        return file.read()


def find_others_files(facts):
    for folder in ("/tmp", "/dev/shm", "/var/tmp", "/run"):
        if os.path.isdir(folder):
            for name in os.listdir(folder):
                if name == facts["shm_name"]:
                    return folder + "/" + name
    return ""


def take_the_users_watches(_):
    number = ctypes.CDLL(None, use_errno=True).inotify_init1(0)
    if number < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    return "a watch"


def take_the_users_queues(_):
    libc = ctypes.CDLL(None, use_errno=True)
    name = b"/ratchet-escape-%d" % os.getpid()
    number = libc.mq_open(name, os.O_RDWR | os.O_CREAT, 0o600, None)
    if number < 0:
        raise OSError(ctypes.get_errno(), "mq_open")
    libc.mq_unlink(name)
    return "a queue"


def take_the_users_signals(_):
    limit = resource.getrlimit(resource.RLIMIT_SIGPENDING)[1]
    return f"{limit} pending signals" if limit > 1000 else ""


def fill_message_queues(_):
    libc = ctypes.CDLL(None, use_errno=True)
    number = libc.msgget(0, 0o1600)
    if number < 0:
        raise OSError(ctypes.get_errno(), "msgget")
    libc.msgctl(number, 0, None)
    return "made a queue"
