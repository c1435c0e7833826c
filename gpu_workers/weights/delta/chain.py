"""Ways to a version: from what a host has, or from a full snapshot, forward over deltas; the one with least to move."""

from collections.abc import Callable
from dataclasses import dataclass

from gpu_workers.contracts.store import ObjectStore, StoreError
from gpu_workers.weights.delta.errors import BadLink
from gpu_workers.weights.delta.manifest import MANIFEST, VersionManifest, decode_manifest

MAX_LINKS = 1000  # versions looked back at before a way is given up

ReadManifest = Callable[[str], VersionManifest]  # by the object key of a version's folder


@dataclass(frozen=True)
class Link:
    """A published version and the object key of its folder."""

    uri: str
    manifest: VersionManifest


@dataclass(frozen=True)
class Way:
    """Deltas to be applied in order. `snapshot` is what they start from; None: what the host has."""

    snapshot: Link | None
    links: tuple[Link, ...]

    @property
    def num_bytes(self) -> int:
        """To be read from the store."""
        start = self.snapshot.manifest.num_bytes if self.snapshot else 0
        return start + sum(link.manifest.delta.num_bytes for link in self.links if link.manifest.delta)


def store_reader(store: ObjectStore) -> ReadManifest:
    """Reads manifests from the store. Raises BadLink."""

    def read(uri: str) -> VersionManifest:
        try:
            return decode_manifest(store.get(f"{uri}/{MANIFEST}"), f"{uri}/{MANIFEST}")
        except StoreError as error:
            raise BadLink(f"gap in the chain: {error}") from error

    return read


def find_ways(wanted: Link, held_digest: str, read: ReadManifest) -> tuple[list[Way], str]:
    """Every sensible way, the one with least to move first, and why looking back ended, for people.

    Looking back from the wanted version ends at what the host has, at the attempt's first version, at a gap, or, once
    two snapshots are known, where the deltas alone would move more than the better one does. A host whose version is
    not on the chain (another attempt's, or a later one after a rewind) is led from the newest snapshot.
    """
    ways: list[Way] = []
    links: tuple[Link, ...] = ()
    link = wanted
    for _ in range(MAX_LINKS):
        if link.manifest.snapshot:
            ways.append(Way(link, links))
        delta = link.manifest.delta
        if delta is None:
            return _sorted(ways), f"{link.manifest.name} is the first of its chain"
        links = (link, *links)
        if delta.base_digest == held_digest:
            return _sorted([*ways, Way(None, links)]), ""
        if len(ways) > 1 and Way(None, links).num_bytes >= min(way.num_bytes for way in ways):
            return _sorted(ways), "older versions would move more than a snapshot"
        try:
            base = Link(delta.base_uri, read(delta.base_uri))
        except BadLink as error:
            return _sorted(ways), str(error)
        if base.manifest.result_digest != delta.base_digest:
            return _sorted(ways), f"{base.manifest.name} is not what {link.manifest.name} was made against"
        link = base
    return _sorted(ways), f"no start within {MAX_LINKS} versions"


def _sorted(ways: list[Way]) -> list[Way]:
    return sorted(ways, key=lambda way: way.num_bytes)
