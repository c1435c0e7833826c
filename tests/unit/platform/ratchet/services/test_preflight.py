"""Checks before anything starts."""

import shutil
from pathlib import Path

import pytest

from ratchet.services import namespaces, preflight
from ratchet.services.errors import ServiceError


def test_full_disk_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preflight.require_usable_home(tmp_path / "home")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: usage._replace(free=20 * 2**20))
    with pytest.raises(ServiceError, match=r"full: 20 MB are free.*RATCHET_HOME"):
        preflight.require_usable_home(tmp_path / "home")


def test_home_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ServiceError, match="RATCHET_HOME"):
        preflight.require_usable_home(tmp_path / "file" / "home")


def test_forbidden_user_namespaces_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(uid: int) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(namespaces, "enter_user_namespace", refuse)
    with pytest.raises(ServiceError, match=r"user namespaces.*DATABASE_URL"):
        namespaces.require_user_namespace(1)


@pytest.mark.parametrize(
    ("own", "accounts", "mapped"),
    [(0, [0, 1, 65534], 1), (1000, [0, 1000], None), (4711, [0, 1, 1000], 1), (0, [0], 1000)],
)
def test_postgres_runs_as_a_user_with_an_account(
    monkeypatch: pytest.MonkeyPatch, own: int, accounts: list[int], mapped: int | None
) -> None:
    class Entry:
        def __init__(self, uid: int) -> None:
            self.pw_uid = uid

    monkeypatch.setattr(namespaces.os, "geteuid", lambda: own)
    monkeypatch.setattr(namespaces.pwd, "getpwall", lambda: [Entry(uid) for uid in accounts])
    assert namespaces.mapped_user() == mapped
