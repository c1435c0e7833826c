"""Programs that reach for files, devices, variables and descriptors of the host. Each returns what it reached."""

import os
import stat


def read_planted(facts):
    with open(facts["secret_path"]) as file:
        return file.read()


def read_through_proc(facts):
    for name in os.listdir("/proc"):
        for door in ("root", "cwd", "task/" + name + "/root"):
            try:
                with open("/proc/" + name + "/" + door + facts["secret_path"]) as file:
                    return file.read()
            except OSError:
                continue
    return ""


def read_by_link(facts):
    os.symlink(facts["secret_path"], "link")
    try:
        with open("link") as file:
            return file.read()
    finally:
        os.unlink("link")


def read_accounts(_):
    with open("/etc/passwd") as file:
        return file.read()


def read_shadow(_):
    with open("/etc/shadow") as file:
        return file.read()


def list_project(facts):
    return " ".join(os.listdir(facts["project"]))


def list_installed_packages(facts):
    return " ".join(os.listdir(facts["packages"])[:3])


def write_beside_the_secret(facts):
    with open(facts["folder"] + "/written", "w") as file:
        file.write("x")
    return "wrote " + file.name


def write_root(_):
    with open("/ratchet-escape-probe", "w") as file:
        file.write("x")
    os.unlink(file.name)
    return "wrote " + file.name


def open_programs_for_writing(_):
    with open("/usr/bin/env", "r+b") as file:
        return "opened " + file.name


def gain_privileges(_):
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    return "set-uid programs work" if status["NoNewPrivs"].strip() == "0" else ""


def hold_capabilities(_):
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    return "CapEff " + status["CapEff"] if int(status["CapEff"], 16) else ""


def make_device(_):
    os.mknod("device", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    os.unlink("device")
    return "made a device"


def open_devices(_):
    for path in ("/dev/kmsg", "/dev/mem", "/dev/port", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/vda", "/dev/sda"):
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            continue
        return "opened " + path
    return ""


def read_workers_environment(facts):
    if facts["env_secret"] in os.environ.values():
        return "inherited"
    for name in os.listdir("/proc"):
        try:
            with open("/proc/" + name + "/environ") as file:
                if facts["env_secret"] in file.read():
                    return "in process " + name
        except OSError:
            continue
    return ""


def use_inherited_descriptors(_):
    for fd in range(3, 256):
        try:
            return "descriptor {} is {}".format(fd, os.readlink("/proc/self/fd/" + str(fd))) if os.fstat(fd) else ""
        except OSError:
            continue
    return ""


def dump_core(_):
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))
    return "core dumps allowed"
