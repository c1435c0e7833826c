"""Distributions of a run: written with what they are of, read by version or merged over all."""

from collections.abc import Iterable, Mapping
from uuid import UUID

from apps.metrics.models import MetricHistogram
from apps.metrics.sketch import Sketch, from_json, of_values
from apps.runs.models import Group, Run

REWARD, LATENCY, TOOL_WAIT = "rollout/reward", "rollout/latency_seconds", "rollout/tool_wait_seconds"
QUEUE_WAIT, LENGTH = "rollout/queue_wait_seconds", "rollout/length_tokens"
STALENESS = "train/staleness"


def observe(run_id: UUID, position: int, values: Mapping[str, Sketch]) -> None:
    """Merge distributions into those stored at `position`. The caller holds the lock of the run's metric head."""
    rows = {row.name: row for row in MetricHistogram.objects.filter(run_id=run_id, position=position, name__in=values)}
    for name, sketch in values.items():
        if not sketch.count and not sketch.not_finite:
            continue
        row = rows.get(name) or MetricHistogram(run_id=run_id, position=position, name=name)
        whole = from_json(row.sketch)
        whole.merge(sketch)
        row.sketch, row.count = whole.to_json(), whole.count
        row.save()


def of_group(group: Group) -> dict[str, Sketch]:
    """Of a stored group's episodes."""
    columns = ("reward", "total_seconds", "tool_seconds", "queue_seconds", "num_sampled_tokens")
    rows = list(group.episodes.values_list(*columns))
    return {
        REWARD: of_values(row[0] for row in rows if row[0] is not None),
        LATENCY: of_values(row[1] for row in rows),
        TOOL_WAIT: of_values(row[2] for row in rows),
        QUEUE_WAIT: of_values(row[3] for row in rows),
        LENGTH: of_values(float(row[4]) for row in rows),
    }


def of_ages(groups: Iterable[tuple[int | None, int]]) -> dict[str, Sketch]:
    """Staleness of trained groups: (age, scored episodes) each."""
    sketch = Sketch()
    for age, episodes in groups:
        if age is not None and episodes:
            sketch.add(float(age), episodes)
    return {STALENESS: sketch}


def by_position(run: Run | UUID, name: str) -> dict[int, Sketch]:
    """Distributions of one name by version or step."""
    run_id = run.pk if isinstance(run, Run) else run
    rows = MetricHistogram.objects.filter(run_id=run_id, name=name).order_by("position")
    return {position: from_json(sketch) for position, sketch in rows.values_list("position", "sketch")}
