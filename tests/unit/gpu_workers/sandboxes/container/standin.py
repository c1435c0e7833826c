"""A stand-in for `docker`, `podman` and `kubectl`: keeps containers as files and runs each as a bubblewrap process.

It reads the words that the backend writes (user, sizes, entrypoint, manifest) and starts exactly the command they name,
with the client's own streams, so that the server inside really runs. It isolates less than an engine does.
Faults are files in STANDIN_HOME: `down`, `no-runtime`, `hang`, `keep` (rm fails), `writable` (root not read-only).
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HOME = Path(os.environ["STANDIN_HOME"])
IMAGE = "python@sha256:" + "a" * 64
DOWN = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"


def load(name):
    path = HOME / "containers" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def save(container):
    path = HOME / "containers" / f"{container['name']}.json"
    path.with_suffix(".new").write_text(json.dumps(container))
    path.with_suffix(".new").rename(path)


def everything():
    return [json.loads(path.read_text()) for path in sorted((HOME / "containers").glob("*.json"))]


def fail(text, code=1):
    print(text, file=sys.stderr)
    sys.exit(code)


def fault(name):
    return (HOME / name).exists()


def run(container, command, uid, sizes):
    """Start the container's command on this process's streams; the exit code of it."""
    if fault("hang"):
        time.sleep(60)
    line = [os.environ["STANDIN_BWRAP"], "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc"]
    line += ["--as-pid-1", "--new-session", "--uid", str(uid), "--gid", str(uid), "--cap-drop", "ALL"]
    line += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
    for name in ("lib", "lib64", "bin", "sbin"):
        if Path("/usr", name).exists():
            line += ["--symlink", f"usr/{name}", f"/{name}"]
    for path, size in sizes.items():
        line += ["--perms", "1777", "--size", str(size), "--tmpfs", path]
    line += ["--chdir", "/workspace"] + ([] if fault("writable") else ["--remount-ro", "/"])
    process = subprocess.Popen([*line, "--", *command], env={"PATH": "/usr/bin:/bin", "FROM_IMAGE": "1"})
    save({**container, "pid": process.pid, "running": True})
    code = process.wait()
    found = load(container["name"])
    code = 128 - code if code < 0 else code
    if found is not None:
        save({**found, "running": False, "exit": code})
    return code


def size_of(text):
    return int(next(part for part in text.split(",") if part.startswith("size=")).removeprefix("size="))


def docker(words):
    if fault("down"):
        fail(DOWN, 125 if "run" in words else 1)
    if words[0] == "--runtime":  # podman's place for it
        words = [words[2], *words[:2], *words[3:]]
    verb, words = words[0], words[1:]
    if verb == "run":
        flags, labels, tmpfs = {}, {}, {}
        while words[0].startswith("--"):
            name = words.pop(0)
            if "=" in name or name in ("--interactive", "--read-only", "--no-healthcheck"):
                flags[name] = True
                continue
            value = words.pop(0)
            if name == "--label":
                labels.update([value.split("=", 1)])
            elif name == "--tmpfs":
                path, _, options = value.partition(":")
                tmpfs[path] = size_of(options)
            else:
                flags[name] = value
        image, *arguments = words
        if fault("no-runtime"):
            fail(f"docker: Error response from daemon: unknown or invalid runtime name: {flags['--runtime']}", 125)
        if image != IMAGE:
            fail(f"docker: Error response from daemon: No such image: {image}", 125)
        container = {"name": flags["--name"], "labels": labels, "oom": False}
        uid = int(flags["--user"].split(":")[0])
        sys.exit(run(container, [flags["--entrypoint"], *arguments], uid, {**tmpfs, "/dev/shm": flags["--shm-size"]}))
    if verb == "rm":
        if fault("keep"):
            fail("Error response from daemon: removal failed")
        remove(words[-1]) or fail(f"Error response from daemon: No such container: {words[-1]}")
    elif verb == "ps":
        print("\n".join(c["name"] for c in everything()))
    elif verb == "inspect":
        names = words[2:]
        found = [c for c in everything() if c["name"] in names]
        print(json.dumps([
            {"Id": c["name"], "Name": "/" + c["name"], "Config": {"Labels": c["labels"]},
             "State": {"Running": c["running"], "ExitCode": c.get("exit", 0), "OOMKilled": c["oom"], "Error": ""}}
            for c in found
        ]))  # fmt: skip
        if len(found) < len(names):
            fail("Error: No such container")
    else:
        fail(f"unknown command {verb}")


def remove(name):
    container = load(name)
    if container is None:
        return False
    if container.get("running") and container.get("pid"):
        # Everything in the namespace ends with its process 1, a child of the process that we know.
        children = Path(f"/proc/{container['pid']}/task/{container['pid']}/children")
        for pid in (children.read_text().split() if children.exists() else []) + [container["pid"]]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    (HOME / "containers" / f"{name}.json").unlink(missing_ok=True)
    return True


def pod_of(container):
    if fault("no-image"):
        waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
        status = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]}
    elif "exit" in container:
        reason = "OOMKilled" if container["oom"] else "Error"
        ended = {"exitCode": container["exit"], "reason": reason}
        status = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]}
    else:
        status = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
    metadata = {"name": container["name"], "annotations": container["labels"]}
    return {"metadata": metadata, "status": status | container.get("status", {})}


def kubectl(words):
    if fault("down"):
        fail("The connection to the server 10.0.0.1:6443 was refused - did you specify the right host or port?")
    assert words[0] == "--namespace"
    namespace, verb, words = words[1], words[2], words[3:]
    if verb in ("apply", "create"):
        manifest = json.loads(sys.stdin.read())
        assert manifest["metadata"]["namespace"] == namespace
        if manifest["kind"] == "NetworkPolicy":
            (HOME / "policy.json").write_text(json.dumps(manifest))
        else:
            annotations = manifest["metadata"]["annotations"]
            save({"name": manifest["metadata"]["name"], "labels": annotations, "manifest": manifest, "oom": False})
    elif verb == "attach":
        container = load(words[-1].removeprefix("pod/"))
        spec = container["manifest"]["spec"]
        inner = spec["containers"][0]
        volumes = {volume["name"]: volume["emptyDir"]["sizeLimit"] for volume in spec["volumes"]}
        sizes = {mount["mountPath"]: volumes[mount["name"]] for mount in inner["volumeMounts"]}
        sys.exit(run(container, inner["command"], inner["securityContext"]["runAsUser"], sizes))
    elif verb == "get" and words[0] == "pods":
        print(json.dumps({"items": [pod_of(container) for container in everything()]}))
    elif verb == "get":
        container = load(words[1])
        print(json.dumps(pod_of(container)) if container else "")
    elif verb == "delete":
        remove(words[1])
    else:
        fail(f"unknown command {verb}")


if __name__ == "__main__":
    with (HOME / "calls.jsonl").open("a") as file:
        file.write(json.dumps(sys.argv[1:]) + "\n")
    (kubectl if sys.argv[1] == "kubectl" else docker)(sys.argv[2:])
