"""Tools that never behave: each is stopped at a bound that its result names, and the next call is served."""

import pytest

LIMITS = {
    "tool_timeout_seconds": 15.0, "num_processes": 24, "cpu_seconds": 2, "memory_bytes": 96 * 2**20,
    "disk_bytes": 4 * 2**20, "output_bytes": 4096,
}  # fmt: skip
PYTHON = "exec python3 -c '{}'"
FOREVER = {
    "forks": (":() { : | : & }; b() { b | b & }; b; sleep 60", {"cpu", "processes", ""}),
    "forks in python": (PYTHON.format("import os\nwhile True:\n try: os.fork()\n except OSError: pass"), {"cpu"}),
    "fills memory": (PYTHON.format("a=[]\nwhile True: a.append(bytearray(1 << 20))"), {"", "memory"}),
    "fills memory with children": (
        PYTHON.format("import os,time\nfor _ in range(4): os.fork()\nx=b\"x\"*(30<<20)\ntime.sleep(60)"), {"memory"},
    ),
    "fills the disk": ("while :; do cat /dev/zero >> f 2>/dev/null || break; done; exit 1", {"disk"}),
    "fills memory files": ("for i in $(seq 9); do cat /dev/zero > /dev/shm/$i; done; exit 1", {"disk"}),
    "makes files": (PYTHON.format("i=0\nwhile True:\n i+=1\n open(str(i),\"w\").close()"), {"disk", "cpu"}),
    "makes folders in folders": ("while :; do mkdir d && cd d || exit 1; done", {"disk", "cpu", ""}),
    "prints": ("exec yes", {"output", "cpu"}),
    "prints errors": ("exec yes >&2", {"output", "cpu"}),
    "prints without an end of line": ("exec cat /dev/zero", {"output", "cpu"}),
    "burns": ("while :; do :; done", {"cpu"}),
}  # fmt: skip
ENDS = {
    "a signal": ("kill -SEGV $$", -11), "its own kill": ("kill -KILL $$", -9), "abort": ("kill -ABRT $$", -6),
    "an exit code": ("exit 200", 200), "nothing": ("", 0), "closed streams": ("exec >&- 2>&- <&-; exit 3", 3),
}  # fmt: skip


@pytest.mark.parametrize("tool", FOREVER)
def test_a_tool_without_end_is_stopped(host, tool):
    command, hits = FOREVER[tool]
    done = host.ask("shell", command=command, limits=LIMITS, timeout=12.0, then="echo alive")
    assert done["exit_code"] != 0
    assert done["limit_hit"] in hits or done["timed_out"], done
    assert len(done["stdout"]) <= LIMITS["output_bytes"]
    assert done["then"] == "alive\n"
    assert done["seconds"] < 16


@pytest.mark.parametrize("end", ENDS)
def test_however_a_tool_ends_it_is_told(host, end):
    command, code = ENDS[end]
    done = host.ask("shell", command=command, limits=LIMITS, timeout=12.0, then="echo alive")
    assert (done["exit_code"], done["timed_out"], done["then"]) == (code, False, "alive\n")


TRICKS = {
    "a link to the host's file": "ln -s {secret} out.txt",
    "a link to a folder of the host": "ln -s {folder} out",
    "a link in the place of a folder": "mkdir d && echo x > d/x && rm -r d && ln -s / d",
    "a link through /proc": "ln -s /proc/self/root{secret} out.txt",
    "a FIFO": "mkfifo out.txt",
    "a socket": "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"out.txt\")'",
    "a sparse file larger than all that may leave": "truncate -s 3M out.txt; truncate -s 3M more.txt",
    "a name that is no text": 'python3 -c \'open(b"\\xff\\xfe", "w")\'',
    "a name with a line end": 'python3 -c \'open("a\\nb", "w")\'',
    "folders too deep": "for i in $(seq 40); do mkdir d; cd d; done; echo x > f",
    "a file that nobody may read": "echo x > out.txt; chmod 000 out.txt; mkdir d; echo y > d/f; chmod 000 d",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_a_trick_in_the_place_of_an_artifact_is_left_behind_and_told(host, trick):
    secret = host.facts["secret_path"]
    command = TRICKS[trick].format(secret=secret, folder=host.facts["folder"])
    done = host.ask("shell", command=f"{command}; echo fine > fine.txt", limits=LIMITS, timeout=12.0)
    text = "".join(done["files"].values())
    assert ("secret" not in text and "fine\n" in text) or trick == "folders too deep", done
    unreadable_by_root = trick == "a file that nobody may read" and host.name == "root"
    assert done["refused"] or unreadable_by_root, "what could not be taken must be told"


def test_the_links_target_can_be_read_outside(host):
    """The control: whoever follows links would have taken the secret."""
    done = host.ask("outside", topic="files", name="read_by_link", limits={})
    assert "ESCAPED: secret" in done["stdout"]
