"""The proof that a project's chain of events is whole: nothing changed, removed, reordered, or cut off at its end."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from apps.accounts.models import Project
from apps.audit import heads
from apps.audit.chain import event_hash
from apps.audit.models import AuditEvent, AuditHead


@dataclass(frozen=True)
class ChainReport:
    """`head` is the newest hash: note it elsewhere and give it back as `anchor`. `anchored`: newest event whose hash
    is also in the object store."""

    ok: bool
    num_events: int
    head: str = ""
    broken_at: int | None = None  # sequence of the first event that does not fit
    message: str = ""
    anchored: int = 0  # what is newer could still be cut off unseen


def verify_chain(project: Project | None, *, anchor: tuple[int, str] | None = None) -> ChainReport:
    """Recompute every hash of a chain (None: events of no project) and compare with its head and its anchors.

    `anchor`: (sequence, hash) that someone noted. Callers check the right.
    """
    project_id = project.pk if project else None
    anchors = heads.anchors_of(project_id)
    noted = dict([anchor]) if anchor else {}
    before = _head(project_id)
    report = _verify_events(project_id, anchors, noted)
    after = _head(project_id)  # events that were added while we read are within it
    if report.ok:
        report = _verify_end(report, before, after, {**anchors, **noted})
    newest = max((sequence for sequence in anchors if sequence <= report.num_events), default=0)
    return ChainReport(report.ok, report.num_events, report.head, report.broken_at, report.message, newest)


def _head(project_id: UUID | None) -> AuditHead | None:
    return AuditHead.objects.filter(project_id=project_id).first()


def _verify_events(project_id: UUID | None, anchors: Mapping[int, str], noted: Mapping[int, str]) -> ChainReport:
    previous, count = "", 0
    events = AuditEvent.objects.filter(project_id=project_id).order_by("sequence")
    for event in events.iterator(chunk_size=500):
        number = event.sequence
        if number != count + 1:
            return ChainReport(False, count, previous, count + 1, f"Event {count + 1} is missing: it was removed.")
        if event.previous_hash != previous or event.hash != event_hash(vars(event)):
            message = f"Event {number} ({event.tag}) does not match its hash: it was changed."
            return ChainReport(False, count, previous, number, message)
        if anchors.get(number, event.hash) != event.hash:
            message = f"Event {number} has another hash than its copy in the object store: the chain was rewritten."
            return ChainReport(False, count, previous, number, message)
        if noted.get(number, event.hash) != event.hash:
            message = f"Event {number} has another hash than the one noted: the chain was rewritten."
            return ChainReport(False, count, previous, number, message)
        previous, count = event.hash, count + 1
    return ChainReport(True, count, previous, None, f"{count} events, unbroken." if count else "No events yet.")


def _verify_end(
    report: ChainReport, before: AuditHead | None, after: AuditHead | None, known: Mapping[int, str]
) -> ChainReport:
    count = report.num_events

    def broken(at: int, message: str) -> ChainReport:
        return ChainReport(False, count, report.head, at, message)

    for head in (before, after):
        if head is not None and not heads.is_genuine(head):
            return broken(count, "The chain's head carries no signature of this platform: it was forged.")
    known_end = max([before.sequence if before else 0, *known])
    if known_end > count:
        return broken(count + 1, f"Events {count + 1} to {known_end} are missing: the end was cut off.")
    if count and after is None:
        return broken(count, "The chain has no head: it was removed.")
    if after is not None and (after.sequence < count or (after.sequence == count and after.hash != report.head)):
        return broken(after.sequence + 1, "The chain goes on beyond its head: events were added past the platform.")
    return report
