"""Run events: what happened, for people, in order."""

from typing import Any

from apps.runs.models import EventLevel, Run, RunEvent
from apps.runs.signals import run_event

INFO, WARNING, ERROR = EventLevel.INFO, EventLevel.WARNING, EventLevel.ERROR
_MAX_MESSAGE = 2000


def record_event(run: Run, code: str, message: str, level: EventLevel = EventLevel.INFO, **data: Any) -> RunEvent:
    """Append one event within the caller's transaction."""
    text = message.replace("\x00", "�")[:_MAX_MESSAGE]
    event = RunEvent.objects.create(run=run, code=code, message=text, level=level, data=data)
    run_event.send(sender=RunEvent, event=event)
    return event
