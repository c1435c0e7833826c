"""Archives: read within bounds, and every trick refused with the member's name."""

import io
import os
import stat
import tarfile
import zipfile

import pytest

from apps.tasks.suites import archive
from apps.tasks.suites.archive import read_archive, read_folder
from apps.tasks.suites.errors import SuiteError


def tar_of(
    *members: tuple[str, bytes | None], kind: bytes = tarfile.REGTYPE, mode: str = "w:gz", link: str = ""
) -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as packed:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = (tarfile.DIRTYPE, "") if data is None else (kind, link)
            info.size = len(data or b"")
            packed.addfile(info, io.BytesIO(data or b""))
    stream.seek(0)
    return stream


def zip_of(*members: tuple[str, bytes], attributes: int = 0) -> io.BytesIO:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = attributes << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(info, data)
    stream.seek(0)
    return stream


def refused(stream: io.BytesIO) -> str:
    with pytest.raises(SuiteError) as caught:
        read_archive(stream, "tasks.zip")
    return str(caught.value)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_tar_files(mode):
    found = read_archive(tar_of(("a", None), ("./a/x.txt", b"1"), ("b.txt", b"2"), mode=mode))
    assert found == {"a/x.txt": b"1", "b.txt": b"2"}


def test_zip_files():
    assert read_archive(zip_of(("a/", b""), ("a/x.txt", b"1"), ("b.txt", b"2"))) == {"a/x.txt": b"1", "b.txt": b"2"}


NAMES = ["../x", "/etc/passwd", "a/../../x", "a//x", "a/./x", "a\\..\\x", "a/\x01x", "x" * 300, "a\nb"]


@pytest.mark.parametrize("name", NAMES)
def test_path_tricks_are_refused_with_the_member(name):
    for stream in (tar_of(("ok", b"1"), (name, b"2")), zip_of(("ok", b"1"), (name, b"2"))):
        assert repr(name[:200]) in refused(stream)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_links_and_devices_are_refused_with_the_member(kind):
    assert "'evil' is" in refused(tar_of(("evil", b""), kind=kind, link="/etc/passwd")).replace(":", "")
    assert "link" in refused(zip_of(("evil", b"/etc/passwd"), attributes=stat.S_IFLNK | 0o777))


def test_a_folder_that_climbs_is_refused_too():
    assert "'../up'" in refused(tar_of(("../up", None), ("x", b"1")))


def test_the_same_name_twice_and_a_file_that_is_a_folder_are_refused():
    assert "there twice" in refused(tar_of(("a", b"1"), ("./a", b"2")))
    assert "itself a file" in refused(tar_of(("a", b"1"), ("a/b", b"2")))
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = zip_of(("a", b"1"), ("a", b"2"))
    assert "there twice" in refused(twice)


def test_bombs_are_stopped_while_they_unpack(monkeypatch):
    monkeypatch.setattr(archive, "MAX_FILE_BYTES", 1 << 20)
    monkeypatch.setattr(archive, "MAX_TOTAL_BYTES", 3 << 20)
    monkeypatch.setattr(archive, "MAX_FILES", 10)
    zeros = bytes(2 << 20)
    assert len(zip_of(("big", zeros)).getvalue()) < 10_000
    for make in (tar_of, zip_of):
        assert "'big'" in refused(make(("big", zeros))) and "MiB" in refused(make(("big", zeros)))
        many = [(f"part{n}", bytes(1 << 20)) for n in range(4)]
        assert "'part3'" in refused(make(*many))
        assert "too many" in refused(make(*[(f"f{n}", b"") for n in range(11)]))


def test_a_zip_that_lies_about_its_size_is_refused():
    data = bytearray(zip_of(("a", b"x" * 100)).getvalue())
    at = data.rindex(b"PK\x01\x02")
    data[at + 24 : at + 28] = (5).to_bytes(4, "little")  # uncompressed size in the central directory
    assert refused(io.BytesIO(bytes(data)))


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"PK\x03\x04", b"\x1f\x8b\x08\x00garbage", tar_of(("a", b"1" * 5000)).getvalue()[:60]]
)
def test_what_is_no_archive_is_said(content):
    assert "tasks.zip" in refused(io.BytesIO(content))


def test_an_encrypted_member_is_refused():
    data = bytearray(zip_of(("a", b"x")).getvalue())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    assert "encrypted" in refused(io.BytesIO(bytes(data)))


def test_a_folder_is_read_the_same_way(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("1")
    assert read_folder(tmp_path) == {"a/x": b"1"}
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(SuiteError, match=r"'link'.*symbolic link"):
        read_folder(tmp_path)
    (tmp_path / "link").unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SuiteError, match=r"'pipe'.*regular"):
        read_folder(tmp_path)
    with pytest.raises(SuiteError, match="no folder"):
        read_folder(tmp_path / "none")
