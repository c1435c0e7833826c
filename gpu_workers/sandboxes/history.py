"""Git repositories among the files that are copied into a workspace: cut to what their HEAD has come from.

A repository taken from a project holds the solution too: in branches, tags and stashes, in the reflog, among objects
that nothing leads to. So it is made anew: HEAD, its branch, the objects reachable from it, an index of its tree.
"""

import hashlib
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from gpu_workers.sandboxes.command import PATH

SECONDS = 120.0  # of one git command
MAX_SAID = 300
MAX_REMEMBERED = 4  # repositories: a group's episodes all start with the same one
_OBJECT = re.compile(r"(?:\A|(.*)/)objects/(?:pack/pack-[0-9a-f]+\.(?:pack|idx)|[0-9a-f]{2}/[0-9a-f]{38,62})\Z")
_KEPT = re.compile(r"HEAD|packed-refs|shallow|refs/(?!replace/).*|" + _OBJECT.pattern.removeprefix(r"(?:\A|(.*)/)"))
_OWN = re.compile(r"(objects|refs|logs|info|hooks|modules|worktrees|lfs|branches)/.*|(\w+_)?HEAD|config(\.worktree)?|"
                  r"packed-refs|shallow|index|description|COMMIT_EDITMSG")  # fmt: skip
_BRANCH = re.compile(r"refs/heads/[\w+-][\w.+-]*(?:/[\w+-][\w.+-]*)*\Z")
# A copy has one mode for all files, and nothing that a repository configures is ever read here.
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = false\n\tbare = {bare}\n\tlogallrefupdates = true\n"
_ENVIRONMENT = {
    "PATH": PATH, "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_NO_REPLACE_OBJECTS": "1", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1",
}  # fmt: skip


_CUT: dict[bytes, dict[str, bytes]] = {}  # digest of a repository's files -> those of the new one, oldest first
_CUTTING = threading.Lock()


class HistoryError(ValueError):
    """A repository that cannot be cut; begins with its folder and says what to do."""


def cut_histories(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The same files with every repository made anew. Raises HistoryError.

    A file `.git`, by which submodules and worktrees name a repository elsewhere, is left out.
    """
    found = {path: data for path, data in files.items() if PurePosixPath(path).name != ".git"}
    for folder in repositories(found):
        prefix = f"{folder}/" if folder else ""
        bare = PurePosixPath(folder).name != ".git"
        inside = {p.removeprefix(prefix): data for p, data in found.items() if p.startswith(prefix)}
        if bare:  # other files may lie beside git's own
            inside = {path: data for path, data in inside.items() if _OWN.fullmatch(path)}
        for path in inside:
            del found[prefix + path]
        try:
            anew = _remembered(inside, bare=bare)
        except FileNotFoundError as error:
            raise HistoryError(f"{folder}: holds a git history, and this host has no git to cut it; install git") from (
                error
            )
        except (subprocess.SubprocessError, OSError, ValueError) as error:
            said = (getattr(error, "stderr", b"") or str(error).encode()).decode(errors="replace").strip()[:MAX_SAID]
            advice = "commit it as a plain SHA-1 repository with all objects of its HEAD, or leave it out"
            raise HistoryError(f"{folder}: its git history cannot be cut to its HEAD: {advice}. It says: {said}") from (
                error
            )
        found |= {prefix + path: data for path, data in anew.items()}
    return found


def repositories(paths: Iterable[str]) -> list[str]:
    """Outermost folders that are named .git or hold git's objects, whatever their name."""
    folders = set()
    for path in paths:
        parts = path.split("/")
        if ".git" in parts[:-1]:
            folders.add("/".join(parts[: parts.index(".git") + 1]))
        elif match := _OBJECT.match(path):
            folders.add(match[1] or "")
    return sorted(f for f in folders if not any(f != outer and f"{f}/".startswith(f"{outer}/") for outer in folders))


def _remembered(files: Mapping[str, bytes], *, bare: bool) -> dict[str, bytes]:
    digest = hashlib.sha256(str(bare).encode())
    for path, data in sorted(files.items()):
        digest.update(f"{len(path)} {len(data)} {path}".encode() + data)
    key = digest.digest()
    with _CUTTING:
        found = _CUT.pop(key, None)
        _CUT[key] = _cut(files, bare=bare) if found is None else found
        if len(_CUT) > MAX_REMEMBERED:
            del _CUT[next(iter(_CUT))]
        return _CUT[key]


def _cut(files: Mapping[str, bytes], *, bare: bool) -> dict[str, bytes]:
    """The files of a new repository; none where the old one has no commit yet."""
    with tempfile.TemporaryDirectory(prefix="ratchet-history-") as place:
        old, new = Path(place, "old"), Path(place, "new")
        kept = {path: data for path, data in files.items() if _KEPT.fullmatch(path)}
        _write(old, {**kept, "config": _CONFIG.format(bare="true").encode(), "refs/.keep": b"", "objects/.keep": b""})
        if not any(map(_OBJECT.match, kept)):
            return {}
        commit = _git(old, "rev-parse", "--verify", "HEAD^{commit}").strip()
        name = kept["HEAD"].decode(errors="replace").removeprefix("ref:").strip()
        branch = name if _BRANCH.match(name) and ".lock" not in name and ".." not in name else ""
        made = {
            "HEAD": f"ref: {branch}\n" if branch else f"{commit}\n",
            branch or "refs/heads/.keep": f"{commit}\n" if branch else "",  # git wants the folder
            "config": _CONFIG.format(bare=str(bare).lower()),
            "objects/pack/.keep": "",
        }
        if "shallow" in kept:
            reached = set(_git(old, "rev-list", commit).split())
            ends = [line for line in kept["shallow"].decode(errors="replace").split() if line in reached]
            made["shallow"] = "".join(f"{line}\n" for line in ends)
        _write(new, {path: text.encode() for path, text in made.items()})
        packing = ("-c", "pack.threads=1", "pack-objects", "--quiet", "--revs")
        _git(old, *packing, str(new / "objects/pack/pack"), stdin=f"{commit}\n")
        if not bare:
            _git(new, "read-tree", "HEAD", index=new / "index")
        found = {str(p.relative_to(new)): p.read_bytes() for p in new.rglob("*") if p.is_file()}
    own = files.get("info/exclude")
    return found if own is None else {**found, "info/exclude": own}


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for path, data in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def _git(folder: Path, *arguments: str, stdin: str = "", index: Path | None = None) -> str:
    environment = _ENVIRONMENT | ({} if index is None else {"GIT_INDEX_FILE": str(index)})
    done = subprocess.run(
        ["git", f"--git-dir={folder}", *arguments], input=stdin.encode(), env=environment, cwd=folder,
        capture_output=True, check=True, timeout=SECONDS,
    )  # fmt: skip
    return done.stdout.decode()
