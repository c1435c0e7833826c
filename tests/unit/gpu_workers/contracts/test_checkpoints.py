"""Keys and names of versions: written and read in one place."""

import pytest

from gpu_workers.contracts.checkpoints import VersionName, attempt_key, read_key, read_name, version_key, version_name


@pytest.mark.parametrize(("attempt", "version"), [(1, 0), (2, 13), (11, 1_234_567)])
def test_what_is_written_is_read(attempt: int, version: int) -> None:
    run = "0192f0c1-7c9a-7000-8000-000000000000"
    key = version_key(run, attempt, version)
    assert key.startswith(f"{attempt_key(run, attempt)}/") and read_key(key) == (attempt, version)
    assert read_name(version_name(run, attempt, version)) == VersionName(run, attempt, version)


@pytest.mark.parametrize(
    "key",
    ["", "runs/x/a1", "runs/x/a1/v000001/model", "runs/x/y/a1/v1", "models/abc", "runs/x/a-1/v1", "runs/x/a1/v1\n"],
)
def test_other_keys_are_no_versions(key: str) -> None:
    assert read_key(key) is None


@pytest.mark.parametrize("name", ["", "default", "policy-abc", "run-x@v1", "run-x.a1@v-1", "run-x.a1@v1 "])
def test_other_names_are_no_versions(name: str) -> None:
    assert read_name(name) is None
