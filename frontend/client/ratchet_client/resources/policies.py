"""Policies, base models and channels."""

from collections.abc import Iterator
from typing import Any

from ratchet_client.resources.resource import Resource
from ratchet_client.types import BaseModel, Channel, ChannelDetail, Policy, PolicyDetail


class Policies(Resource):
    def list(self, **filters: Any) -> Iterator[Policy]:
        """Filters: project, slug, kind, base_model, run_id."""
        return self._http.pages("policies/", filters)

    def get(self, policy_id: str) -> PolicyDetail:
        policy: PolicyDetail = self._http.get(f"policies/{policy_id}/")
        return policy

    def create(
        self, slug: str, *, project: str, base_model: str, title: str = "", num_shots: int = 0, key: str = ""
    ) -> Policy:
        """A prompt-only policy; trained ones come from runs."""
        body: dict[str, Any] = {"project": project, "slug": slug, "base_model": base_model, "num_shots": num_shots}
        body |= {"title": title} if title else {}
        policy: Policy = self._http.post("policies/", body, key=key)
        return policy

    def base_models(self) -> Iterator[BaseModel]:
        return self._http.pages("base-models/")


class Channels(Resource):
    def list(self, **filters: Any) -> Iterator[Channel]:
        """Filters: project, name."""
        return self._http.pages("channels/", filters)

    def get(self, project: str, name: str) -> ChannelDetail:
        channel: ChannelDetail = self._http.get(f"channels/{project}/{name}/")
        return channel

    def create(self, name: str, *, project: str, policy: str, key: str = "") -> Channel:
        """Set a channel up with its first policy."""
        channel: Channel = self._http.post("channels/", {"project": project, "name": name, "policy": policy}, key=key)
        return channel

    def rollback(self, project: str, name: str, *, epoch: int, reason: str, key: str = "") -> ChannelDetail:
        """Put the policy before the present one back; refused when the channel has moved on from `epoch`."""
        path, headers = f"channels/{project}/{name}/rollback/", {"If-Match": f'"{epoch}"'}
        channel: ChannelDetail = self._http.post(path, {"reason": reason}, key=key, headers=headers)
        return channel
