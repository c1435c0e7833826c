"""A suite as it is sent: bounded, in JSON or multipart, turned into what its parser takes."""

import json
from collections.abc import Iterable
from typing import Any

from rest_framework.request import Request

from apps.tasks.suites.archive import read_archive
from apps.tasks.suites.declaration import Declaration, convert
from apps.tasks.suites.definition import Suite
from apps.tasks.suites.jsonl import parse_suite
from ratchet.parsers import StrictJSONParser
from ratchet.problems import Problem

MAX_BYTES = 32 * 2**20


class SuiteJSONParser(StrictJSONParser):
    """JSON of the size of a suite."""

    max_bytes = MAX_BYTES


def check_size(request: Request) -> None:
    """Raise Problem 413 before a body that is too large is read, 411 where its length is not stated."""
    length = request.headers.get("Content-Length", "")
    if not length.isdecimal():
        raise Problem("length_required", 411, "State the body's Content-Length.")
    if int(length) > MAX_BYTES:
        limit = f"{MAX_BYTES // 2**20} MiB"
        raise Problem("too_large", 413, f"A suite may have {limit}: split it, or shorten the files of its tasks.")


def read_upload(values: dict[str, Any]) -> Suite:
    """Parse what SuiteCreateSerializer has validated. Raises Problem or SuiteError."""
    header = values["header"]
    if not isinstance(header, dict):
        raise _invalid("header", "must be an object with slug, title, distribution, failure_modes and verifier")
    file, tasks = values.get("file"), values.get("tasks")
    if (file is None) == (tasks is None):
        raise _invalid("file", "send either a file of JSON lines (multipart) or a list of tasks (JSON)")
    lines: Iterable[str] = (
        [json.dumps(task) for task in tasks] if tasks is not None else _text(file, "file").split("\n")
    )
    tool_files = {sent.name: _text(sent, f"tool_files: {sent.name}") for sent in values.get("tool_files", [])}
    return parse_suite(header, lines, tool_files)


def read_harbor(values: dict[str, Any]) -> tuple[Declaration, dict[str, bytes]]:
    """Declaration and files of an uploaded archive. Raises Problem or SuiteError."""
    header = values["header"]
    if not isinstance(header, dict):
        raise _invalid("header", "must be an object with slug, title, distribution and failure_modes")
    if values.get("file") is not None or values.get("tasks") is not None:
        raise _invalid("archive", "send either an archive of task folders, or the tasks themselves")
    declared: Declaration = convert(header, Declaration)
    return declared, read_archive(values["archive"], values["archive"].name)


def _text(file: Any, where: str) -> str:
    try:
        text: str = file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _invalid(where, f"is not UTF-8: byte {error.start} cannot be read") from error
    return text


def _invalid(path: str, message: str) -> Problem:
    return Problem("invalid", 400, "The suite was not imported.", [{"path": path, "message": message}])
