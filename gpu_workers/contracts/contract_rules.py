"""What a valid contract looks like: every field checked, every problem named by the field's path. Pure."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from gpu_workers.contracts.environment import (
    CONTRACT_VERSION,
    WORKSPACE,
    EnvironmentContract,
    Limits,
    Mount,
    MountRole,
    Network,
    NetworkAccess,
    NetworkMode,
    parse_endpoint,
)

MIN_PROCESSES = 8  # the sandbox's own two, a shell and what it starts
MIN_MEMORY = 32 * 2**20
MIN_DISK = 64 * 2**10
MAX_FILES = 1000
MAX_SEGMENT = 255  # bytes of a file's name
MAX_PATH = 1024
MAX_ENTRIES = 64  # of an allow-list
MAX_DETERMINISM_RUNS = 20
MAX_SECONDS = 7 * 86_400
# Where the sandbox's own files lie: a mount there would replace or hide them.
RESERVED = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "root", "run", "sbin", "sys", "tmp",
            "usr", "var", "home", "workspace")  # fmt: skip
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_ROOT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,49}\Z")
_IMAGE = re.compile(r"[a-z0-9][a-z0-9._/:-]{0,199}@sha256:[0-9a-f]{64}\Z")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 .+()_-]{0,99}\Z")


@dataclass(frozen=True)
class ContractProblem:
    """One thing wrong: `path` as in limits.memory_bytes or mounts[1].source."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"contract.{self.path}: {self.message}"


class ContractError(ValueError):
    """A contract that nobody can grant."""

    def __init__(self, problems: list[ContractProblem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def check_contract_fields(contract: EnvironmentContract) -> None:
    """Raise ContractError unless every field holds what it may hold."""
    if problems := list(contract_problems(contract)):
        raise ContractError(problems)


def contract_problems(contract: EnvironmentContract) -> Iterator[ContractProblem]:
    """All problems of a contract, whichever worker it will meet; what one host allows is that worker's to say."""
    if contract.version != CONTRACT_VERSION:
        yield ContractProblem("version", f"{contract.version} is not known here; this release reads {CONTRACT_VERSION}")
    for name in ("source_format", "licence"):
        value = getattr(contract, name)
        if value and not _LABEL.match(value):
            yield ContractProblem(name, f"{value[:50]!r} is not a short name")
    if contract.image and not _IMAGE.match(contract.image):
        yield ContractProblem("image", "must name its digest, as in python@sha256:<64 hex digits>: a tag can change")
    yield from _network(contract)
    yield from _mounts(contract.mounts)
    for name, value in contract.environment.items():
        if not _VARIABLE.match(name) or "\0" in value:
            yield ContractProblem("environment", f"{name!r} is not a variable")
    yield from _limits(contract.limits)
    yield from _files(contract)
    yield from _artifacts(contract.artifacts)
    yield from _links(contract)
    if not 1 <= contract.determinism_runs <= MAX_DETERMINISM_RUNS:
        message = f"{contract.determinism_runs} must be from 1 to {MAX_DETERMINISM_RUNS}"
        yield ContractProblem("determinism_runs", message)


def _network(contract: EnvironmentContract) -> Iterator[ContractProblem]:
    assert isinstance(contract.network, Network)
    for name in ("agent", "verifier"):
        yield from _access(f"network.{name}", getattr(contract.network, name))


def _access(path: str, access: NetworkAccess) -> Iterator[ContractProblem]:
    if access.mode is not NetworkMode.ALLOWLIST:
        if access.allow:
            yield ContractProblem(f"{path}.allow", f"belongs to the mode allowlist, not to {access.mode}")
        return
    if not access.allow:
        yield ContractProblem(f"{path}.allow", "is empty: name the hosts as host:port, or set the mode to none")
    if len(access.allow) > MAX_ENTRIES:
        yield ContractProblem(f"{path}.allow", f"more than {MAX_ENTRIES} entries")
    for index, text in enumerate(access.allow[:MAX_ENTRIES]):
        try:
            parse_endpoint(text)
        except ValueError as error:
            yield ContractProblem(f"{path}.allow[{index}]", str(error))


def _mounts(mounts: list[Mount]) -> Iterator[ContractProblem]:
    if len(mounts) > MAX_ENTRIES:
        yield ContractProblem("mounts", f"more than {MAX_ENTRIES}")
    seen: list[tuple[str, ...]] = []
    for index, mount in enumerate(mounts[:MAX_ENTRIES]):
        where = f"mounts[{index}]"
        in_workspace = mount.role is MountRole.WORKSPACE
        if mount.mode != ("rw" if in_workspace else "ro"):
            rule = "rw, a copy of the episode's own" if in_workspace else "ro: the host's data is never writable"
            yield ContractProblem(f"{where}.mode", f"{mount.mode!r}; with role {mount.role} it is {rule}")
        if problem := _mount_path(mount.path, in_workspace):
            yield ContractProblem(f"{where}.path", problem)
            continue
        parts = PurePosixPath(mount.path).parts
        if not in_workspace and any(parts[: len(other)] == other[: len(parts)] for other in seen):
            yield ContractProblem(f"{where}.path", f"{mount.path!r} lies in, around or at the place of another mount")
        if not in_workspace:
            seen.append(parts)
        if not _ROOT_NAME.match(mount.root) or (mount.folder and path_problem(mount.folder)):
            message = f"{mount.source[:80]!r} is not the name of a data root and a path below it, as in datasets/squad"
            yield ContractProblem(f"{where}.source", message)


def _mount_path(path: str, in_workspace: bool) -> str:
    """Why a mount may not appear at this path; empty when it may."""
    if in_workspace:
        plain = path == WORKSPACE or (path.startswith(WORKSPACE + "/") and not path_problem(path[len(WORKSPACE) + 1 :]))
        return "" if plain else f"{path[:80]!r} must be {WORKSPACE} or a path below it"
    if not path.startswith("/") or path_problem(path[1:]):
        return f"{path[:80]!r} is not an absolute path without . or .. in it"
    top = path[1:].partition("/")[0]
    return f"{path[:80]!r} would replace files of the sandbox; use e.g. /data" if top in RESERVED else ""


def path_problem(path: str) -> str:
    """Why a relative path is not plain: every segment a name, nothing to be resolved. Empty when it is."""
    try:
        segments = path.encode().split(b"/")
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if not path or any(segment in (b"", b".", b"..") for segment in segments):
        return "must be relative and plain: no empty segment, no . and no .."
    if not path.isprintable():
        return "holds characters that cannot be shown"
    if len(path) > MAX_PATH or any(len(segment) > MAX_SEGMENT for segment in segments):
        return f"is longer than {MAX_PATH} characters, or than {MAX_SEGMENT} bytes in one segment"
    return ""


def _limits(limits: Limits) -> Iterator[ContractProblem]:
    for name, minimum in (("num_processes", MIN_PROCESSES), ("memory_bytes", MIN_MEMORY), ("disk_bytes", MIN_DISK)):
        if getattr(limits, name) < minimum:
            message = f"{getattr(limits, name)} is too small to start anything, at least {minimum}"
            yield ContractProblem(f"limits.{name}", message)
    for name in ("cpu_seconds", "output_bytes"):
        if not 0 < getattr(limits, name) < 2**31:
            yield ContractProblem(f"limits.{name}", f"{getattr(limits, name)} must be positive")
    if limits.artifact_bytes < 0:
        yield ContractProblem("limits.artifact_bytes", f"{limits.artifact_bytes} must not be negative")
    for name in ("setup", "tool", "episode", "verify"):
        seconds = getattr(limits, f"{name}_timeout_seconds")
        if not (math.isfinite(seconds) and 0 < seconds <= MAX_SECONDS):
            message = f"{seconds} must be positive and at most {MAX_SECONDS}"
            yield ContractProblem(f"limits.{name}_timeout_seconds", message)


def _files(contract: EnvironmentContract) -> Iterator[ContractProblem]:
    if len(contract.files) > MAX_FILES:
        yield ContractProblem("files", f"more than {MAX_FILES}")
        return
    names = set()
    for path, text in contract.files.items():
        inside = path.removeprefix(WORKSPACE + "/")
        if problem := path_problem(inside):
            yield ContractProblem("files", f"{path[:80]!r} {problem}")
        elif inside in names:
            yield ContractProblem("files", f"{path[:80]!r} is given twice")
        names.add(inside)
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            yield ContractProblem("files", f"the content of {path[:80]!r} is not valid Unicode")
            return
    for inside in sorted(names):
        if any(str(parent) in names for parent in PurePosixPath(inside).parents):
            yield ContractProblem("files", f"{inside[:80]!r} lies below a path that is itself a file")
    size = sum(len(text.encode()) for text in contract.files.values())
    if size > contract.limits.disk_bytes:
        yield ContractProblem("files", f"they do not fit into limits.disk_bytes {contract.limits.disk_bytes}")


def _links(contract: EnvironmentContract) -> Iterator[ContractProblem]:
    mounted = {PurePosixPath(mount.path) for mount in contract.mounts}
    if len(contract.links) > MAX_ENTRIES:
        yield ContractProblem("links", f"more than {MAX_ENTRIES}")
    for path, target in list(contract.links.items())[:MAX_ENTRIES]:
        if problem := _mount_path(path, in_workspace=False):
            yield ContractProblem("links", problem)
        elif path.count("/") > 1:
            yield ContractProblem("links", f"{path[:80]!r} is not at the root, as /app is")
        elif target != "." and path_problem(target):
            yield ContractProblem("links", f"{target[:80]!r} {path_problem(target)}")
        elif any(PurePosixPath(path) in (place, *place.parents) for place in mounted):
            yield ContractProblem("links", f"{path[:80]!r} lies around or at the place of a mount")


def _artifacts(patterns: list[str]) -> Iterator[ContractProblem]:
    if len(patterns) > MAX_ENTRIES:
        yield ContractProblem("artifacts", f"more than {MAX_ENTRIES}")
    for index, pattern in enumerate(patterns[:MAX_ENTRIES]):
        if problem := path_problem(pattern):
            yield ContractProblem(f"artifacts[{index}]", f"{pattern[:80]!r} {problem}")
