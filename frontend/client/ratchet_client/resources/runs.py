"""Runs with their groups, events and metrics; episodes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ratchet_client.errors import ApiError
from ratchet_client.feed import RunFeed
from ratchet_client.resources.resource import Resource
from ratchet_client.types import (
    Checkpoint,
    Episode,
    EpisodeDetail,
    Ledger,
    Run,
    RunDetail,
    RunEvent,
    Series,
    ValidatedSpec,
)


class Runs(Resource):
    def submit(self, spec: Mapping[str, Any], *, project: str, key: str = "") -> RunDetail:
        """Submit a run. The same `key` and spec twice make one run; without a key each call makes one."""
        run: RunDetail = self._http.post("runs/", {"project": project, "spec": dict(spec)}, key=key)
        return run

    def validate(self, spec: Mapping[str, Any], *, project: str) -> ValidatedSpec:
        """What `submit` would run, refused as it would be; nothing is stored."""
        wanted: ValidatedSpec = self._http.post("runs/validate/", {"project": project, "spec": dict(spec)})
        return wanted

    def list(self, **filters: Any) -> Iterator[Run]:
        """Newest first. Filters: project, suite, policy, state, number."""
        return self._http.pages("runs/", filters)

    def get(self, run_id: str) -> RunDetail:
        run: RunDetail = self._http.get(f"runs/{run_id}/")
        return run

    def pause(self, run_id: str) -> RunDetail:
        return self._act(run_id, "pause")

    def resume(self, run_id: str) -> RunDetail:
        return self._act(run_id, "resume")

    def retry(self, run_id: str) -> RunDetail:
        """A new run of the same spec; while it is under way another retry answers with it."""
        return self._act(run_id, "retry")

    def cancel(self, run_id: str, reason: str = "") -> RunDetail:
        return self._act(run_id, "cancel", {"reason": reason})

    def ledger(self, run_id: str) -> Ledger:
        ledger: Ledger = self._http.get(f"runs/{run_id}/ledger/")
        return ledger

    def checkpoints(self, run_id: str) -> Iterator[Checkpoint]:
        return self._http.pages(f"runs/{run_id}/checkpoints/")

    def events(self, run_id: str, after: int = 0) -> Iterator[RunEvent]:
        """Oldest first, those with an id above `after`."""
        return self._http.pages(f"runs/{run_id}/events/", {"after": after})

    def metrics(self, run_id: str, names: Sequence[str] = (), *, every: bool = False) -> Sequence[Series]:
        """Long series keep the lowest and highest point of each bucket of steps; with `every` all, up to 500,000."""
        return self._series(run_id, names, every)[0]

    def _series(self, run_id: str, names: Sequence[str], every: bool) -> tuple[Sequence[Series], int]:
        """With the revision that they hold."""
        query = {"name": list(names), "every": "true" if every else ""}
        response = self._http.request("GET", f"runs/{run_id}/metrics/", params=query)
        return response.json(), int(response.headers["Ratchet-Cursor"])

    def feed(self, run_id: str) -> RunFeed:
        """What is new since the last poll."""

        def live(points: int, events: int, mark: str) -> dict[str, Any]:
            answer: dict[str, Any] = self._http.get(
                f"runs/{run_id}/live/", {"cursor": points, "events": events, "mark": mark}
            )
            return answer

        def series() -> tuple[Sequence[Series], int]:
            try:
                return self._series(run_id, (), every=True)
            except ApiError as error:
                if error.code != "too_many_points":
                    raise
                return self._series(run_id, (), every=False)

        return RunFeed(live, series)

    def export_episodes(self, run_id: str, *, transcripts: bool = False) -> AbstractContextManager[Iterator[str]]:
        """All its episodes as JSON lines, streamed: `with runs.export_episodes(id) as lines: …`."""
        return self._http.stream(f"runs/{run_id}/episodes.jsonl", {"transcripts": "1"} if transcripts else None)

    def _act(self, run_id: str, verb: str, body: Any = None) -> RunDetail:
        run: RunDetail = self._http.post(f"runs/{run_id}/{verb}/", body or {})
        return run


class Episodes(Resource):
    def list(self, **filters: Any) -> Iterator[Episode]:
        """Newest first. Filters: project, run, group, task, verdict, success, reason_code, boundary, tamper."""
        return self._http.pages("episodes/", filters)

    def get(self, episode_id: str, *, tokens: bool = False) -> EpisodeDetail:
        """With its turns; with `tokens` down to token ids, mask, log-probabilities and versions."""
        episode: EpisodeDetail = self._http.get(f"episodes/{episode_id}/", {"tokens": "1"} if tokens else None)
        return episode
