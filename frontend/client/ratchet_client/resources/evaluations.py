"""Evaluations of policies and their results."""

from collections.abc import Iterator, Sequence
from typing import Any

from ratchet_client.resources.resource import Resource
from ratchet_client.types import Comparison, Evaluation, Results


class Evaluations(Resource):
    def list(self, **filters: Any) -> Iterator[Evaluation]:
        """Filters: project, suite, split, purpose, state, run."""
        return self._http.pages("evaluations/", filters)

    def get(self, evaluation_id: str) -> Evaluation:
        evaluation: Evaluation = self._http.get(f"evaluations/{evaluation_id}/")
        return evaluation

    def results(self, evaluation_id: str) -> Results:
        """By arm, and task by task for who may read the tasks."""
        results: Results = self._http.get(f"evaluations/{evaluation_id}/results/")
        return results

    def comparison(self, evaluation_id: str, base: str = "") -> Comparison:
        """Each arm against that of label `base` (the first), paired by task: difference with its 95 % interval."""
        query = {"base": base} if base else {}
        comparison: Comparison = self._http.get(f"evaluations/{evaluation_id}/comparison/", query)
        return comparison

    def cancel(self, evaluation_id: str) -> Evaluation:
        evaluation: Evaluation = self._http.post(f"evaluations/{evaluation_id}/cancel/")
        return evaluation

    def retry(self, evaluation_id: str) -> Evaluation:
        """The same plan as a new evaluation; while it is under way another retry answers with it."""
        evaluation: Evaluation = self._http.post(f"evaluations/{evaluation_id}/retry/")
        return evaluation

    def start(
        self,
        policies: Sequence[str],
        *,
        project: str,
        suite: str,
        split: str = "dev",
        samples: int = 1,
        max_tasks: int = 0,
        key: str = "",
    ) -> Evaluation:
        """Run policies on the same tasks, interleaved."""
        body = {"project": project, "suite": suite, "split": split, "policies": list(policies), "samples": samples}
        evaluation: Evaluation = self._http.post("evaluations/", body | {"max_tasks": max_tasks}, key=key)
        return evaluation
