"""Suites and their tasks."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ratchet_client.http import Files
from ratchet_client.resources.resource import Resource
from ratchet_client.types import CheckProgress, Suite, SuiteDetail, Task


class Suites(Resource):
    def list(self, **filters: Any) -> Iterator[Suite]:
        """Filters: project, slug, state, content_hash."""
        return self._http.pages("suites/", filters)

    def get(self, suite_id: str) -> SuiteDetail:
        suite: SuiteDetail = self._http.get(f"suites/{suite_id}/")
        return suite

    def progress(self, suite_id: str) -> CheckProgress:
        """How far the checks of its tasks are."""
        progress: CheckProgress = self._http.get(f"suites/{suite_id}/progress/")
        return progress

    def tasks(self, suite_id: str, **filters: Any) -> Iterator[Task]:
        """Filters: split, state, cluster, quarantine_code, tag."""
        return self._http.pages(f"suites/{suite_id}/tasks/", filters)

    def upload(
        self,
        header: Mapping[str, Any],
        *,
        project: str,
        tasks: Path | None = None,
        archive: Path | None = None,
        tool_files: tuple[Path, ...] = (),
        key: str = "",
    ) -> Suite:
        """Import a suite from a header and a file of JSON lines, or an archive of Harbor task folders."""
        files: Files = [("header", ("header.json", json.dumps(header).encode(), "application/json"))]
        named = [("file", tasks), ("archive", archive), *(("tool_files", path) for path in tool_files)]
        files += [(n, (path.name, path.read_bytes(), "application/octet-stream")) for n, path in named if path]
        suite: Suite = self._http.post("suites/", data={"project": project}, files=files, key=key)
        return suite

    def import_source(self, source: str, *, project: str, key: str = "") -> Suite:
        """Import a suite that comes with the platform, e.g. bfcl."""
        suite: Suite = self._http.post("suites/import/", {"project": project, "source": source}, key=key)
        return suite
