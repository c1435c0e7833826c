"""The page of all metrics, docs/metrics.md, made from the registry. Pure."""

from apps.metrics.registry import METRICS, Axis, Kind, Metric, Source

_GROUPS = {
    "train": "Training", "rollout": "Rollouts", "group": "Groups", "fleet": "Weight updates",
    "time": "Where the time goes", "errors": "Errors by boundary", "engine": "Engines",
    "trainer": "The trainer's process", "host": "Hosts",
}  # fmt: skip
_HEAD = """# Metrics

Made by `python manage.py document_metrics` from `apps/metrics/registry.py`, from which axes and `GET /api/v1/metrics/`
come too. *Reported*: a worker says so of itself. *Measured*: the platform computed it from stored episodes and answers
of the fleet; where a worker reports a measured name as well, the measured one is shown. A histogram is a distribution
at each position of its axis: exact up to 256 different values, then with percentiles within 1 %; two of one name merge.
Its percentiles are in `tables.distributions` of a run's `live/`. NaN and infinities are kept as such, and are the texts
`NaN`, `Infinity` and `-Infinity` in JSON.
"""


def metrics_page() -> str:
    """Markdown."""
    parts = [_HEAD]
    for prefix, title in _GROUPS.items():
        rows = [metric for metric in METRICS.values() if metric.name.split("/")[0] == prefix]
        parts.append(f"\n## {title}\n\n| name | what | unit | definition | source |\n|---|---|---|---|---|\n")
        parts += [_row(metric) for metric in sorted(rows, key=lambda metric: (metric.kind, metric.name))]
    return "".join(parts)


def _row(metric: Metric) -> str:
    kind = "histogram, " if metric.kind is Kind.HISTOGRAM else ""
    source = "reported" if metric.source is Source.REPORTED else "measured"
    axis = "by step" if metric.axis is Axis.STEP else "by version"
    definition = metric.definition.replace("|", "\\|")
    return f"| `{metric.name}` | {metric.title} | {metric.unit or '–'} | {definition} | {kind}{source}, {axis} |\n"
