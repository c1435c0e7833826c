"""Gates: opening, reading, deciding."""

from collections.abc import Iterator
from typing import Any

from ratchet_client.resources.resource import Resource
from ratchet_client.types import Evidence, Gate, GateDetail, GatePlan


class Gates(Resource):
    def list(self, **filters: Any) -> Iterator[Gate]:
        """Newest first. Filters: project, channel, candidate, state, verdict, run."""
        return self._http.pages("gates/", filters)

    def get(self, gate_id: str) -> GateDetail:
        gate: GateDetail = self._http.get(f"gates/{gate_id}/")
        return gate

    def evidence(self, gate_id: str) -> Evidence:
        """Whether the digest, recomputed from the stored episodes now, still holds."""
        evidence: Evidence = self._http.get(f"gates/{gate_id}/evidence/")
        return evidence

    def plan(self, *, project: str, suite: str, gate_policy: str = "default", samples: int = 1) -> GatePlan:
        """What a gate opened now could show. Spends nothing."""
        query = {"project": project, "suite": suite, "gate_policy": gate_policy, "samples": samples}
        plan: GatePlan = self._http.get("gates/plan/", query)
        return plan

    def open(self, *, project: str, candidate: str, suite: str, key: str = "", **more: Any) -> Gate:
        """Compare a candidate with what the channel serves, on held-out tasks. This spends a look.

        `more`: channel, gate_policy, samples, sampling, baselines, run.
        """
        given = {name: value for name, value in more.items() if value not in (None, "", [])}
        gate: Gate = self._http.post(
            "gates/", {"project": project, "candidate": candidate, "suite": suite, **given}, key=key
        )
        return gate

    def decide(self, gate_id: str, kind: str, *, evidence_digest: str, reason: str = "") -> GateDetail:
        """Approve, reject, or ask to override, on the evidence that was looked at; refused when it has changed."""
        body = {"kind": kind, "reason": reason, "evidence_digest": evidence_digest}
        gate: GateDetail = self._http.post(f"gates/{gate_id}/decision/", body)
        return gate

    def confirm(self, gate_id: str, *, agree: bool, evidence_digest: str, reason: str = "") -> GateDetail:
        """The second approver's word on an override."""
        body = {"agree": agree, "reason": reason, "evidence_digest": evidence_digest}
        gate: GateDetail = self._http.post(f"gates/{gate_id}/confirm/", body)
        return gate
