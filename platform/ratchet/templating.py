"""The Jinja environment of the pages: URLs, static files and the filters that write numbers."""

from datetime import datetime, timedelta
from typing import Any

from django.contrib.messages import get_messages
from django.templatetags.static import static
from django.urls import reverse
from django.utils import timezone
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup


def share(value: float | None, digits: int = 3) -> str | Markup:
    """A share in [0, 1] without its leading zero, or "not measured"."""
    if value is None:
        return Markup('<span class="na">not measured</span>')
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def number(value: float | None, digits: int = 0) -> str | Markup:
    """A number with thin grouping, or "no data yet"."""
    if value is None:
        return Markup('<span class="na">no data yet</span>')
    return f"{value:,.{digits}f}"


def duration(seconds: float | None) -> str | Markup:
    """Seconds for people: 0.21 s, 42 s, 3 min 5 s, 1 h 02 min."""
    if seconds is None:
        return Markup('<span class="na">no data yet</span>')
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def ago(moment: datetime | None) -> str | Markup:
    """How long ago a moment was."""
    if moment is None:
        return Markup('<span class="na">never</span>')
    return f"{duration(max((timezone.now() - moment) / timedelta(seconds=1), 0))} ago"


def utc(moment: datetime | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """A moment in UTC."""
    return moment.strftime(form) if moment else ""


def url(name: str, *args: Any, **kwargs: Any) -> str:
    return reverse(name, args=args, kwargs=kwargs)


def environment(**options: Any) -> Environment:
    """The environment Django's Jinja2 backend uses; an unknown name in a template is an error."""
    options["undefined"] = StrictUndefined
    env = Environment(**options)  # noqa: S701 - Django passes autoescape=True
    env.globals.update(static=static, url=url, get_messages=get_messages)
    env.filters.update(share=share, number=number, duration=duration, ago=ago, utc=utc)
    return env
