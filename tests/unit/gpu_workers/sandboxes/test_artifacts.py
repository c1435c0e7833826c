"""Which files may leave a workspace, and what is told of those that may not."""

import os
import time
from pathlib import Path

import pytest

from gpu_workers.sandboxes.artifacts import AllowList
from gpu_workers.sandboxes.snapshot import read_folder


@pytest.mark.parametrize(
    ("pattern", "takes", "leaves"),
    [
        ("**", ["a", "a/b/c"], []),
        ("*.txt", ["a.txt", ".txt"], ["d/a.txt", "a.txt2", "a.tx"]),
        ("out/**", ["out/a", "out/b/c"], ["a", "outer/a"]),
        ("**/*.py", ["a.py", "x/y/a.py"], ["a.pyc"]),
        ("a/**/b/*", ["a/b/c", "a/x/y/b/c"], ["a/b", "b/c", "a/b/c/d"]),
        ("report.json", ["report.json"], ["report.json/x", "x/report.json", "reportXjson"]),
        ("?.md", ["a.md"], ["ab.md", ".md"]),
        ("a[b]+(c)", ["a[b]+(c)"], ["ab", "abb"]),
    ],
)
def test_patterns(pattern, takes, leaves):
    allowed = AllowList([pattern])
    assert [p for p in takes + leaves if allowed.takes(p)] == takes


def test_an_empty_list_takes_nothing():
    assert not AllowList([]).takes("a") and not AllowList([]).leads("a")


def test_folders_that_lead_to_a_match():
    allowed = AllowList(["out/*.txt", "a/b/**"])
    assert [p for p in ("out", "a", "a/b", "a/b/c", "b", "out/x", "a/c") if allowed.leads(p)] == [
        "out", "a", "a/b", "a/b/c",
    ]  # fmt: skip


def test_a_hostile_pattern_costs_little():
    started = time.monotonic()
    assert not AllowList(["/".join(["**", "a*" * 60 + "b"] * 12)]).takes("/".join(["a" * 250] * 16))
    assert time.monotonic() - started < 30


def read(folder: Path, limit: int = 10_000, artifacts=("**",), first=()):
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return read_folder(fd, limit, artifacts, first=first)
    finally:
        os.close(fd)


def test_only_listed_files_leave_and_tricks_in_their_place_are_told(tmp_path):
    (tmp_path / "secret").write_text("host")
    work = tmp_path / "work"
    (work / "out" / "deep").mkdir(parents=True)
    (work / "out" / "a.json").write_text("{}")
    (work / "out" / "big.json").write_bytes(b"x" * 20_000)
    (work / "out" / "deep" / "b.json").write_text("{}")
    (work / "notes.txt").write_text("scratch")
    (work / "venv").symlink_to("/usr")  # of no concern: nothing listed lies there
    (work / "out" / "c.json").symlink_to(tmp_path / "secret")
    os.mkfifo(work / "out" / "d.json")
    snapshot = read(work, artifacts=["out/*.json"])
    assert snapshot.files == {"out/a.json": b"{}"}
    told = sorted(line.split(":")[0] for line in snapshot.refused)
    assert told == ["out/big.json", "out/c.json", "out/d.json"]
    assert snapshot.num_left == 3


def test_a_link_in_the_place_of_a_listed_folder_is_told(tmp_path):
    (tmp_path / "out").symlink_to("/etc")
    snapshot = read(tmp_path, artifacts=["out/*"])
    assert snapshot.files == {} and snapshot.refused[0].startswith("out: not a regular file but a link to '/etc'")


def test_a_large_folder_takes_no_file_beside_it(tmp_path):
    for number in range(1200):
        (tmp_path / "data" / f"{number % 40}").mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / f"{number % 40}" / f"{number}.js").write_text("x")
    (tmp_path / "solution.py").write_text("mine")
    snapshot = read(tmp_path)
    assert snapshot.files["solution.py"] == b"mine" and len(snapshot.files) == 1000
    assert read(tmp_path).files.keys() == snapshot.files.keys(), "the same ones each time"


def test_the_tasks_own_files_are_read_however_many_others_there_are(tmp_path):
    (tmp_path / "tests").mkdir()
    for number in range(1200):
        (tmp_path / f"a{number}").write_text("x")
    (tmp_path / "tests" / "test_it.py").write_text("own")
    (tmp_path / "link.py").symlink_to("tests/test_it.py")
    (tmp_path / "inner").symlink_to("tests")
    first = ["tests/test_it.py", "link.py", "inner/test_it.py", "gone.py"]
    snapshot = read(tmp_path, first=first)
    assert snapshot.files["tests/test_it.py"] == b"own" and len(snapshot.files) == 1000
    assert not {"link.py", "inner/test_it.py", "gone.py"} & set(snapshot.files)


def test_a_flood_of_files_hides_nothing_that_takes_the_place_of_one(tmp_path):
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "solution.py").symlink_to("/etc/passwd")
    (tmp_path / "z" / "of_the_task").write_text("changed")
    for number in range(3000):
        (tmp_path / f"f{number}").touch()
    found = read(tmp_path, first=["z/of_the_task"])
    assert "z/solution.py: not a regular file but a link to '/etc/passwd'" in found.refused
    assert found.files["z/of_the_task"] == b"changed" and len(found.files) == 1000
    assert "more than 1000 files" in " ".join(found.refused) and len(found.refused) < 200
