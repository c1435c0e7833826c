"""What commands print: tables for people, tab-separated lines for pipes, JSON for programs; nothing else prints."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ratchet_client.errors import ApiError, RatchetError
from ratchet_client.untrusted import printable

Column = tuple[str, Callable[[Any], object]]


class ExitCode(IntEnum):
    PASS = 0
    FAIL = 1
    INCONCLUSIVE = 2
    ERROR = 3


class Output:
    """`as_json`: one JSON document on standard output (JSON lines where rows keep coming), in ASCII."""

    def __init__(self, as_json: bool = False, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        self.as_json = as_json
        self._noted = ""
        self.stdout = stdout or sys.stdout
        self.console = _console(self.stdout)
        self.errors = _console(stderr or sys.stderr)

    @property
    def is_terminal(self) -> bool:
        return self.console.is_terminal

    def json(self, value: Any) -> None:
        """One document, indented."""
        self.stdout.write(json.dumps(value, indent=2) + "\n")
        self.stdout.flush()

    def json_line(self, value: Any) -> None:
        self.stdout.write(json.dumps(value) + "\n")
        self.stdout.flush()

    def table(self, rows: Iterable[Any], columns: list[Column]) -> None:
        """A list: a table, lines of tab-separated fields in a pipe, or a JSON array of the whole rows."""
        listed = list(rows)
        if self.as_json:
            self.json(listed)
        elif self.is_terminal:
            table = make_table(listed, columns) if listed else Text("nothing", style="dim")
            # Not squeezed into a narrow terminal: an id must stay whole to be copied.
            natural = self.console.measure(table, options=self.console.options.update_width(_UNBOUNDED)).maximum
            _console(self.stdout, max(self.console.width, natural)).print(table, crop=False)
        else:
            self.raw("\t".join(title for title, _ in columns))
            for row in listed:
                self.raw("\t".join(cell(value(row)).plain for _, value in columns))

    def record(self, value: Any, fields: Mapping[str, object]) -> None:
        """One object: its fields, a line each, or the whole as JSON."""
        if self.as_json:
            self.json(value)
            return
        width = max(map(len, fields), default=0)
        for name, field in fields.items():
            self.say(Text(f"{name:<{width}}  ", style="dim"), cell(field))

    def say(self, *parts: object) -> None:
        """A line for people; nothing where JSON is asked for."""
        if not self.as_json:
            line = Text.assemble(*(part if isinstance(part, Text) else printable(part) for part in parts))
            if self.is_terminal:
                self.console.print(line, soft_wrap=True)
            else:
                self.raw(line.plain)

    def block(self, text: str) -> None:
        """Text of several lines that somebody else wrote."""
        if not self.as_json:
            self.raw(printable(text, lines=True))

    def note(self, text: str) -> None:
        """Beside the result: on standard error."""
        self.errors.print(cell(text), style="dim", soft_wrap=True)

    def note_once(self, text: str) -> None:
        """What was said last is not repeated."""
        if text != self._noted:
            self._noted = text
            self.note(text)

    def error(self, error: RatchetError) -> None:
        """What is wrong, where, and what to do."""
        code = f" ({error.code}, {error.status})" if isinstance(error, ApiError) else ""
        if self.as_json:
            fields = [{"path": f.path, "message": f.message, "where": f.where} for f in error.fields]
            problem = {"code": error.code, "status": error.status, "message": error.message}
            self.json({"error": problem | {"errors": fields, "hint": error.hint}})
        self._complain(Text.assemble(("error: ", "bold red"), printable(error.message + code)))
        for field in error.fields:
            place = f"  {field.where}: " if field.where else "  "
            words = (printable(place), (printable(field.path), "bold"), "  ", printable(field.message))
            self._complain(Text.assemble(*words))
        if error.hint:
            self._complain(Text.assemble(("what to do: ", "bold"), printable(error.hint)))

    def raw(self, line: str) -> None:
        """A line as it is: the caller has made it printable."""
        self.stdout.write(line + "\n")

    def _complain(self, line: Text) -> None:
        self.errors.print(line, soft_wrap=True)


_MAX_WIDTH = 40  # of a column
_UNBOUNDED = 10_000


def _console(file: TextIO, width: int | None = None) -> Console:
    """A terminal that takes text as it is: no markup, no emoji codes, no colouring of numbers."""
    return Console(file=file, width=width, highlight=False, markup=False, emoji=False)


def make_table(rows: Iterable[Any], columns: list[Column]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", show_edge=False)
    for title, _ in columns:
        table.add_column(title, overflow="fold", max_width=_MAX_WIDTH)
    for row in rows:
        table.add_row(*(cell(value(row)) for _, value in columns))
    return table


def cell(value: object) -> Text:
    """A value as one printable line. None is a dash, never 0."""
    match value:
        case Text():
            return value
        case None | "":
            return Text("–", style="dim")
        case bool():
            return Text("yes" if value else "no")
        case float():
            return Text(f"{value:.4g}")
    return Text(printable(value))


_MARKS = {
    "pass": ("✓ pass", "green"), "fail": ("✗ fail", "red"), "inconclusive": ("? inconclusive", "yellow"),
    "not_measured": ("– not measured", "dim"), "error": ("! error", "red"), "succeeded": ("✓ succeeded", "green"),
    "failed": ("✗ failed", "red"), "halted": ("✗ halted", "red"), "cancelled": ("– cancelled", "dim"),
    "ready": ("✓ ready", "green"), "finished": ("✓ finished", "green"), "running": ("▸ running", "cyan"),
}  # fmt: skip


def mark(state: str) -> Text:
    """A state or verdict as sign, word and colour."""
    words, style = _MARKS.get(state, (printable(state), ""))
    return Text(words or "–", style=style)


def day(value: str | None) -> str | None:
    """A time of the API to the minute, in UTC: for lists."""
    return f"{datetime.fromisoformat(value).astimezone(UTC):%Y-%m-%d %H:%M}" if value else None


def when(value: str | None) -> str | None:
    """A time of the API to the second, in UTC."""
    return f"{datetime.fromisoformat(value).astimezone(UTC):%Y-%m-%d %H:%M:%SZ}" if value else None


def percent(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.1f} %"


def seconds(value: float | None) -> str | None:
    """A duration in the unit that reads best."""
    if value is None:
        return None
    if value < 120:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
