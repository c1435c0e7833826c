"""Questions about what code of the candidate did during the check, as the watch in its process reported it. Pure."""

from collections.abc import Iterator

from gpu_workers.verifiers.detectors.view import Sighting, View

SEEN = "seen_at_check"  # key of the evidence: kind of deed -> what was done, as inside/audit.py names the kinds
WHERE = "the check"


def seen_place(view: View) -> Iterator[Sighting]:
    """A place of answers was opened, listed or handed to a program."""
    for sighting in _seen(view, "place"):
        if not view.is_honest_path(sighting.excerpt, sighting.excerpt):
            yield sighting


def seen_process(view: View) -> Iterator[Sighting]:
    yield from _seen(view, "process")


def seen_search(view: View) -> Iterator[Sighting]:
    yield from _seen(view, "search")


def seen_shown(view: View) -> Iterator[Sighting]:
    """Tests that the policy was given were opened."""
    yield from _seen(view, "shown")


def seen_frames(view: View) -> Iterator[Sighting]:
    yield from _seen(view, "frames")


def seen_raw(view: View) -> Iterator[Sighting]:
    yield from _seen(view, "raw")


def seen_blinded(view: View) -> Iterator[Sighting]:
    yield from _seen(view, "blinded")


def seen_flood(view: View) -> Iterator[Sighting]:
    yield from _seen(view, "flood")


def only_raised(view: View) -> Iterator[Sighting]:
    """Tests that want an error were passed by code that returned what was wanted in none."""
    number = _evidence(view).get("only_raised")
    if isinstance(number, int):
        yield Sighting(WHERE, f"{number} tests passed by an error alone")


def _seen(view: View, kind: str) -> Iterator[Sighting]:
    seen = _evidence(view).get(SEEN)
    whats = seen.get(kind, ()) if isinstance(seen, dict) else ()
    yield from (Sighting(WHERE, str(what)) for what in whats)


def _evidence(view: View) -> dict[str, object]:
    said = view.record.verification
    return dict(view.record.evidence if said is None else said.evidence)
