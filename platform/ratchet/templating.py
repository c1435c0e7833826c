"""The Jinja environment of the pages: URLs, static files and the filters that write numbers."""

import json
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


def signed(value: float | None, digits: int = 1) -> str | Markup:
    """A difference with its sign, minus as a minus sign; "not measured" where there is none."""
    if value is None:
        return Markup('<span class="na">not measured</span>')
    text = f"{value:+.{digits}f}"
    return text.replace("-", "−") if float(text) else f"{0:.{digits}f}"


def digest(value: str) -> str | Markup:
    """A hash shortened to what people compare, whole on hover."""
    if not value:
        return Markup('<span class="na">none</span>')
    return Markup('<span class="mono" title="{0}">{1}…{2}</span>').format(value, value[:4], value[-3:])


def plural(count: int, word: str, many: str = "") -> str:
    """`1 run`, `2 runs`."""
    return f"{count:,} {word if count == 1 else many or word + 's'}"


def capitalize_first(text: str) -> str:
    """A sentence's first letter in upper case, the rest as it is."""
    return text[:1].upper() + text[1:]


def plural_of(items: list[Any], word: str) -> str:
    """How many things a list has."""
    return plural(len(items), word)


def pretty(value: Any) -> str:
    """JSON for people; the template escapes it."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def url(name: str, *args: Any, **kwargs: Any) -> str:
    return reverse(name, args=args, kwargs=kwargs)


def environment(**options: Any) -> Environment:
    """The environment Django's Jinja2 backend uses; an unknown name in a template is an error."""
    options["undefined"] = StrictUndefined
    env = Environment(**options)  # noqa: S701 - Django passes autoescape=True
    env.globals.update(static=static, url=url, get_messages=get_messages)
    filters = (share, number, duration, ago, utc, signed, digest, plural, plural_of, capitalize_first, pretty)
    env.filters.update({function.__name__: function for function in filters})
    return env
