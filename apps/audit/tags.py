"""Typed audit tags: source:subject:action, e.g. user:run:cancel."""

import re
from enum import StrEnum
from typing import NamedTuple


class Source(StrEnum):
    USER = "user"  # a person, or a token of theirs
    SYSTEM = "system"  # the platform by itself
    WORKER = "worker"


class Tag(NamedTuple):
    """What happened: who acts, on which kind of thing, which verb."""

    source: Source
    subject: str
    action: str

    def __str__(self) -> str:
        return f"{self.source}:{self.subject}:{self.action}"


def parse_tag(text: str) -> Tag:
    """Raises ValueError for anything but three lower-case words with a known source."""
    found = re.fullmatch(r"([a-z]+):([a-z_]+):([a-z_]+)", text)
    if found is None or found[1] not in list(Source):
        raise ValueError(f"audit tag {text!r} is not source:subject:action with source {', '.join(Source)}")
    return Tag(Source(found[1]), found[2], found[3])
