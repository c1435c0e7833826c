"""The object store: content-addressed blobs and attempt-fenced folders over fsspec (a folder here, S3 elsewhere)."""

import hashlib
import io
import os
import shutil
import uuid
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import fsspec

_CHUNK_BYTES = 1 << 20


class StoreError(RuntimeError):
    """An object that is missing or whose bytes are not those of its name."""


class ObjectStore:
    """Blobs live at objects/<sha[:2]>/<sha>; references are those relative paths."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.fs, root = fsspec.core.url_to_fs(url)
        self.root = root.rstrip("/")
        self.is_local = urlsplit(url).scheme in ("", "file")

    def path(self, key: str) -> str:
        """Full path of a key inside the file system."""
        if key.startswith("/") or ".." in key.split("/"):
            raise StoreError(f"bad object key {key!r}: must be relative and without '..'")
        return f"{self.root}/{key}"

    def put(self, data: bytes) -> str:
        """Store bytes under their SHA-256; returns the key. Idempotent."""
        digest = hashlib.sha256(data).hexdigest()
        key = f"objects/{digest[:2]}/{digest}"
        if not self.fs.exists(self.path(key)):
            self.write(key, data)
        return key

    def write(self, key: str, data: bytes) -> None:
        """Write one object whole: a reader sees all of it or nothing."""
        if self.is_local:
            self._replace(key, io.BytesIO(data))
        else:
            self.fs.pipe_file(self.path(key), data)

    def put_file(self, key: str, file: Path) -> None:
        """Copy a local file to a key, whole or not at all; it is never in memory as a whole."""
        if not self.is_local:
            self.fs.put_file(str(file), self.path(key))
            return
        with file.open("rb") as source:
            self._replace(key, source)

    def get_file(self, key: str, target: Path) -> None:
        """Copy an object to a local file. Raises StoreError where there is none."""
        try:
            self.fs.get_file(self.path(key), str(target))
        except FileNotFoundError as error:
            raise StoreError(f"object {key} is missing from {self.url}") from error

    def _replace(self, key: str, source: BinaryIO) -> None:
        target = Path(self.path(key))
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with temporary.open("wb") as handle:
                shutil.copyfileobj(source, handle, _CHUNK_BYTES)
                handle.flush()
                os.fsync(handle.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def get(self, key: str) -> bytes:
        """Read an object; content-addressed keys are checked against their name."""
        try:
            data: bytes = self.fs.cat_file(self.path(key))
        except FileNotFoundError as error:
            raise StoreError(f"object {key} is missing from {self.url}") from error
        if key.startswith("objects/") and hashlib.sha256(data).hexdigest() != key.rsplit("/", 1)[1]:
            raise StoreError(f"object {key} is damaged: its bytes do not match its name")
        return data

    def exists(self, key: str) -> bool:
        return bool(self.fs.exists(self.path(key)))

    def put_folder(self, key: str, folder: Path) -> None:
        """Copy a local folder to a key; each `manifest.json` after what it speaks of, the folder's own last."""
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        for file in sorted(files, key=lambda p: (p.name == "manifest.json", -len(p.parts))):
            self.put_file(f"{key}/{file.relative_to(folder).as_posix()}", file)

    def local_folder(self, key: str, cache: Path) -> Path:
        """A local path holding the folder `key`: the store itself when it is a folder, else a copy below `cache`."""
        if self.is_local:
            path = Path(self.path(key))
            if not path.is_dir():
                raise StoreError(f"folder {key} is missing from {self.url}")
            return path
        target = cache / key
        if not (target / ".complete").exists():
            target.mkdir(parents=True, exist_ok=True)
            self.fs.get(self.path(key) + "/", str(target) + "/", recursive=True)
            (target / ".complete").touch()
        return target
