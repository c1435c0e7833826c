"""Files that the image of a Harbor task would hold in its working folder: copied, or written by its RUN. Pure."""

import posixpath
from collections.abc import Mapping

from apps.tasks.suites.archive import text_of
from apps.tasks.suites.docker_run import KEPT
from apps.tasks.suites.dockerfile import Copied, NotRunnable, Recipe

Files = Mapping[str, bytes]


def placed_files(files: Files, recipe: Recipe, workdir: str) -> dict[str, str]:
    """Files below the working folder, as the image would have them. Raises NotRunnable, SuiteError."""
    found: dict[str, str] = {}
    for step in recipe.steps:
        if isinstance(step, Copied):
            found |= _copied(files, step, workdir)
            continue
        below = _below(step.path, workdir, "RUN writes")
        if below != KEPT:  # the working folder itself is there
            found[below] = found.get(below, "") + step.text if step.append else step.text
    return found


def _copied(files: Files, step: Copied, workdir: str) -> dict[str, str]:
    context = {
        path[12:]: data
        for path, data in files.items()
        if path.startswith("environment/") and posixpath.basename(path) not in ("Dockerfile", ".dockerignore")
    }
    found: dict[str, str] = {}
    for source in step.sources:
        plain = posixpath.normpath(source.lstrip("/"))
        if plain.startswith("..") or any(sign in plain for sign in "*?["):
            raise NotRunnable(f"environment/Dockerfile: COPY {source}: only plain names below environment/")
        for name, data in _selected(context, plain):
            into_folder = bool(name) or step.target.endswith("/")
            path = posixpath.join(step.target, name or posixpath.basename(plain)) if into_folder else step.target
            below = _below(path, workdir, "COPY to")
            found[below] = text_of(f"environment/{posixpath.join(plain, name) if name else plain}", data)
    return found


def _below(path: str, workdir: str, what: str) -> str:
    below = posixpath.relpath(path, workdir)
    if below.startswith(".."):
        raise NotRunnable(f"environment/Dockerfile: {what} {path}, outside the working folder {workdir}")
    return below


def _selected(context: Files, source: str) -> list[tuple[str, bytes]]:
    """Files of one source of COPY: path below it (empty: the source itself is a file) and content."""
    if source in context:
        return [("", context[source])]
    prefix = "" if source == "." else f"{source}/"
    found = [(path[len(prefix) :], data) for path, data in sorted(context.items()) if path.startswith(prefix)]
    if not found:
        raise NotRunnable(f"environment/Dockerfile: COPY {source}: there is nothing of that name in environment/")
    return found
