"""Git repositories in what is copied into a workspace: the past stays, of the future nothing is left to be found."""

import os
import subprocess
import zlib
from pathlib import Path

import pytest

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.environment import EnvironmentContract, Mount, MountRole
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.sandboxes.container.backend import ContainerBackend
from gpu_workers.sandboxes.container.docker import DockerEngine
from gpu_workers.sandboxes.history import HistoryError, cut_histories, repositories
from gpu_workers.sandboxes.host import DataRoot, HostPolicy
from tests.unit.gpu_workers.sandboxes.container.conftest import IMAGE, standin  # noqa: F401

PAST, FUTURE = "def total(n): raise NotImplementedError  # past", "def total(n): return sum(n)  # solution"
CONFIG = {"GIT_CONFIG_COUNT": "3", "GIT_CONFIG_KEY_0": "user.name", "GIT_CONFIG_VALUE_0": "a"}
CONFIG |= {"GIT_CONFIG_KEY_1": "user.email", "GIT_CONFIG_VALUE_1": "a@b", "GIT_CONFIG_KEY_2": "init.defaultBranch"}
ENVIRONMENT = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"} | CONFIG
ENVIRONMENT |= {"GIT_CONFIG_VALUE_2": "main"}


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repo(tmp_path):
    """Two commits; after them, by every way there is, commits that hold the solution."""
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "sub.txt").write_text("first\n")
    git(folder, "init", "-q")
    for text in ("# nothing yet\n", PAST):
        (folder / "solution.py").write_text(text)
        git(folder, "add", ".")
        git(folder, "commit", "-qm", text[:9])
    git(folder, "checkout", "-qb", "fix")
    for number in range(3):
        (folder / "solution.py").write_text(f"{FUTURE} {number}")
        git(folder, "commit", "-qam", f"fix {number}")
    git(folder, "tag", "-am", FUTURE, "v2")
    git(folder, "checkout", "-q", "main")
    git(folder, "branch", "gone", "fix~1")
    git(folder, "branch", "-D", "gone")
    (folder / "solution.py").write_text(f"{FUTURE} stashed")
    git(folder, "stash")
    (folder / "solution.py").write_text(f"{FUTURE} staged")
    git(folder, "add", ".")
    (folder / "solution.py").write_text(PAST)
    git(folder, "notes", "add", "-m", FUTURE)
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def written(folder: Path, files: dict[str, bytes]) -> Path:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def everything_in(folder: Path) -> str:
    """All objects of a repository, whatever leads to them, and all its plain files."""
    names = git(folder, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
    texts = [git(folder, "cat-file", "-p", name) for name in names]
    loose = [zlib.decompress(path.read_bytes()) for path in folder.glob(".git/objects/??/*")]
    plain = [path.read_bytes() for path in (folder / ".git").rglob("*") if path.is_file()]
    return "\n".join([*texts, *(data.decode(errors="replace") for data in (*loose, *plain))])


@pytest.mark.parametrize("packed", [False, True])
def test_the_past_is_whole_and_of_the_future_nothing_is_left(repo, tmp_path, packed):
    if packed:
        git(repo, "gc", "-q", "--no-prune")
    assert "# solution" in everything_in(repo)
    commit, status = git(repo, "rev-parse", "HEAD"), {"sub.txt", "solution.py"}
    cut = written(tmp_path / "cut", cut_histories(files_of(repo)))
    assert {path.name for path in cut.iterdir()} == status | {".git"}
    found = everything_in(cut)
    assert "# past" in found and "# nothing yet" in found and "# solution" not in found and "fix" not in found
    assert (git(cut, "rev-parse", "HEAD"), git(cut, "branch", "--show-current")) == (commit, "main")
    assert git(cut, "for-each-ref", "--format=%(refname)") == "refs/heads/main"
    assert git(cut, "status", "--porcelain") == "" and git(cut, "fsck", "--strict") == ""
    (cut / "solution.py").write_text("mine\n")
    git(cut, "commit", "-qam", "mine")
    assert git(cut, "log", "--format=%s").split("\n") == ["mine", "def total", "# nothing"]


def test_a_detached_head_a_nested_repository_and_links_to_repositories_elsewhere(repo, tmp_path):
    git(repo, "checkout", "-q", "-f", "--detach", "HEAD~1")
    files = {f"vendor/x/{path}": data for path, data in files_of(repo).items()}
    cut = cut_histories(files | {"module/.git": b"gitdir: ../.git/modules/module\n", "module/a": b"a"})
    assert "module/.git" not in cut and cut["module/a"] == b"a"
    nested = written(tmp_path / "cut", cut) / "vendor/x"
    assert git(nested, "log", "--format=%s") == "# nothing" and git(nested, "branch", "--show-current") == ""
    assert "# past" not in everything_in(nested)


def test_a_repository_by_another_name_beside_other_files(repo, tmp_path):
    files = {path.replace(".git/", "", 1): data for path, data in files_of(repo).items() if path.startswith(".git/")}
    cut = cut_histories({f"up/stream/{p}": d for p, d in files.items()} | {"up/stream/own/a": b"a", "b": b"b"})
    assert cut.pop("up/stream/own/a") == b"a" and cut.pop("b") == b"b"
    bare = written(tmp_path / "cut", cut) / "up/stream"
    assert git(bare, "for-each-ref", "--format=%(refname)") == "refs/heads/main"
    assert git(bare, "count-objects", "-v").count("in-pack: 7"), "two commits, two trees, three texts"


def test_what_cannot_be_cut_is_refused_and_what_has_no_commit_is_left_out(tmp_path):
    git(tmp_path, "init", "-q")
    assert cut_histories({**files_of(tmp_path), "a": b"a"}) == {"a": b"a"}
    (tmp_path / "a").write_text("a")
    git(tmp_path, "add", "a")
    with pytest.raises(HistoryError, match=r"^\.git: .*cannot be cut to its HEAD: commit it"):
        cut_histories(files_of(tmp_path))
    assert repositories(["a/.git/HEAD", "a/.git/modules/b/objects/pack/pack-ab.pack", "objects/x", "b.git/HEAD"]) == [
        "a/.git"
    ]


@pytest.fixture(params=["bubblewrap", "docker"])
def mounting(request, repo, standin):  # noqa: F811
    host = HostPolicy(data_roots={"repos": DataRoot(repo.parent, frozenset({MountRole.WORKSPACE}))})
    if request.param == "bubblewrap":
        return BubblewrapBackend(host=host)
    return ContainerBackend(DockerEngine(), IMAGE, host)


CONTRACT = EnvironmentContract(
    mounts=[Mount(path="/workspace", source="repos/repo", role=MountRole.WORKSPACE, mode="rw")]
)


async def test_inside_a_sandbox_git_works_and_finds_only_the_past(mounting):
    sandbox = mounting.create(CONTRACT)
    await sandbox.start()
    look = "git log --all --oneline | wc -l; git status --porcelain; git fsck --unreachable; git reflog --all"
    done = await sandbox.exec(["sh", "-c", f"{look}; git show fix:solution.py"])
    await sandbox.close()
    assert done.stdout.strip() == "2" and "fix" in done.stderr, done


async def test_a_history_that_cannot_be_cut_is_the_tasks_fault(mounting, repo):
    (repo / ".git/HEAD").write_text("ref: refs/heads/nowhere\n")
    with pytest.raises(WorkerError, match=r"contract\.mounts: \.git: its git history") as refused:
        await mounting.create(CONTRACT).start()
    assert refused.value.boundary is Boundary.ENVIRONMENT
