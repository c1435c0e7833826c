"""Files of an uploaded archive or a folder, bounded and plain: names the member of every trick that it refuses."""

import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

from apps.tasks.suites.errors import SuiteError
from gpu_workers.contracts.contract_rules import path_problem

MAX_FILES = 20_000
MAX_FILE_BYTES = 8 * 2**20
MAX_TOTAL_BYTES = 128 * 2**20  # unpacked
_PIECE = 1 << 16
_ENCRYPTED = 0x1


class _Collector:
    """What has been read so far, within the limits."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.files: dict[str, bytes] = {}
        self.total = 0

    def name(self, member: str) -> str:
        """A member's path as one below the root. Raises SuiteError for every trick."""
        path = member.removeprefix("./").rstrip("/")
        if problem := path_problem(path) if path else "":
            raise self.refuse(member, problem)
        if "\\" in path:
            raise self.refuse(member, "holds a backslash")
        return path

    def add(self, member: str, stream: IO[bytes]) -> None:
        path = self.name(member)
        if not path or path in self.files:
            raise self.refuse(member, "is there twice" if path else "has no name")
        if len(self.files) >= MAX_FILES:
            raise self.refuse(member, f"is one file too many: {MAX_FILES} are allowed")
        pieces, size = [], 0
        while piece := stream.read(_PIECE):  # the size that a header states is not to be believed
            size += len(piece)
            self.total += len(piece)
            if size > MAX_FILE_BYTES:
                raise self.refuse(member, f"has more than {MAX_FILE_BYTES // 2**20} MiB")
            if self.total > MAX_TOTAL_BYTES:
                raise self.refuse(member, f"brings the unpacked files above {MAX_TOTAL_BYTES // 2**20} MiB")
            pieces.append(piece)
        self.files[path] = b"".join(pieces)

    def refuse(self, member: str, why: str) -> SuiteError:
        return SuiteError.single(f"{self.source}: {member[:200]!r}", why)


def read_archive(stream: BinaryIO, name: str = "archive") -> dict[str, bytes]:
    """Path -> content of a zip or tar file (also .gz, .bz2, .xz). Raises SuiteError naming the member."""
    found = _Collector(name)
    try:
        if zipfile.is_zipfile(stream):
            stream.seek(0)
            _read_zip(stream, found)
        else:
            stream.seek(0)
            _read_tar(stream, found)
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        OSError,
        ValueError,
        NotImplementedError,
    ) as error:
        if isinstance(error, SuiteError):
            raise
        raise SuiteError.single(name, f"is no sound zip or tar file: {error or type(error).__name__}") from error
    if not found.files:
        raise SuiteError.single(name, "holds no file")
    return _consistent(found)


def read_folder(folder: Path) -> dict[str, bytes]:
    """As read_archive, of a folder of this machine. Raises SuiteError naming the file."""
    found = _Collector(str(folder))
    for path in _walk(folder, found):
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise found.refuse(str(path), "is no regular file")
            found.add(path.relative_to(folder).as_posix(), stream)
    if not found.files:
        raise SuiteError.single(str(folder), "holds no file")
    return found.files


def text_of(path: str, data: bytes) -> str:
    """A file's text. Raises SuiteError for a binary one: tasks hold texts."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise SuiteError.single(
            path, f"is no UTF-8 text (byte {error.start}); binary files cannot be imported"
        ) from None
    if "\0" in text:
        raise SuiteError.single(path, "is no text: it holds a NUL byte; binary files cannot be imported")
    return text


def _walk(folder: Path, found: _Collector) -> Iterator[Path]:
    if not folder.is_dir():
        raise SuiteError.single(str(folder), "is no folder")
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise found.refuse(str(path.relative_to(folder)), "is a symbolic link")
        if path.is_file():
            yield path
        elif not path.is_dir():
            raise found.refuse(str(path.relative_to(folder)), "is no regular file")


def _read_zip(stream: BinaryIO, found: _Collector) -> None:
    with zipfile.ZipFile(stream) as archive:
        for info in archive.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if info.is_dir():
                found.name(info.filename)
                continue
            if kind not in (0, stat.S_IFREG):
                raise found.refuse(info.filename, "is a link or a device")
            if info.flag_bits & _ENCRYPTED:
                raise found.refuse(info.filename, "is encrypted")
            with archive.open(info) as member:
                found.add(info.filename, member)


def _read_tar(stream: BinaryIO, found: _Collector) -> None:
    with tarfile.open(fileobj=stream, mode="r:*") as archive:
        for info in archive:
            if info.isdir():
                found.name(info.name)
            elif not info.isreg() or info.issparse():
                kind = "a link" if info.issym() or info.islnk() else "no regular file"
                raise found.refuse(info.name, f"is {kind}")
            else:
                member = archive.extractfile(info)
                assert member is not None
                found.add(info.name, member)


def _consistent(found: _Collector) -> dict[str, bytes]:
    """Refuse a file that is also a folder of others."""
    for path in found.files:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            if "/".join(parts[:depth]) in found.files:
                raise found.refuse(path, "lies below a path that is itself a file")
    return found.files
