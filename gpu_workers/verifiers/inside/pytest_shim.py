"""What test suites use of pytest, where the real one is not installed: raises, approx, parametrize, fixture, skip."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

NUMBERS = (int, float, complex, Decimal, Fraction)


class Failed(AssertionError):
    """pytest.fail(), or an exception that did not come."""


class Skipped(Exception):
    """pytest.skip()."""


def fail(reason: str = "", pytrace: bool = True) -> None:
    raise Failed(reason)


def skip(reason: str = "", allow_module_level: bool = False) -> None:
    raise Skipped(reason)


class _Raises:
    def __init__(self, expected: Any, match: str | None) -> None:
        self.expected, self.match = expected, match
        self.value: Any = None
        self.type: Any = None

    def __enter__(self) -> _Raises:
        return self

    def __exit__(self, kind: Any, error: Any, _: Any) -> bool:
        if kind is None:
            raise Failed(f"did not raise {self.expected}")
        if not issubclass(kind, self.expected):
            meant = getattr(error, "stands_for", None)  # of the candidate's own StopIteration
            return meant is not None and issubclass(meant, self.expected)
        self.value, self.type = error, kind
        if self.match is not None and not re.search(self.match, str(error)):
            raise Failed(f"{str(error)!r} does not match {self.match!r}")
        return True


def raises(expected: Any, function: Callable[..., Any] | None = None, *args: Any, match: str | None = None) -> _Raises:
    context = _Raises(expected, match)
    if function is not None:
        with context:
            function(*args)
    return context


class approx:
    """Equal within a tolerance; only to plain numbers, lists and dictionaries of them."""

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None, nan_ok: bool = False) -> None:
        self.expected, self.rel, self.abs, self.nan_ok = expected, rel, abs, nan_ok

    def __eq__(self, other: object) -> bool:
        return self._close(other, self.expected)

    def _close(self, got: Any, expected: Any) -> bool:
        if isinstance(expected, dict):
            return type(got) is dict and got.keys() == expected.keys() and all(
                self._close(got[key], value) for key, value in expected.items()
            )  # fmt: skip
        if isinstance(expected, (list, tuple)):
            kind = list if isinstance(expected, list) else tuple
            return isinstance(got, kind) and len(got) == len(expected) and all(map(self._close, got, expected))
        if type(got) not in NUMBERS or type(expected) not in NUMBERS:
            return type(got) is type(expected) and got == expected
        if expected != expected:
            return self.nan_ok and got != got
        if got == expected:
            return True
        if isinstance(expected, complex) or isinstance(got, complex):
            return abs(complex(got) - complex(expected)) <= self._tolerance(abs(complex(expected)))
        if not (math.isfinite(got) and math.isfinite(expected)):
            return False
        got, expected = Fraction(got), Fraction(expected)  # a Decimal and a float know no difference
        return abs(got - expected) <= self._tolerance(abs(expected))

    def _tolerance(self, size: Any) -> Any:
        relative = 1e-6 if self.rel is None and self.abs is None else self.rel or 0.0
        return max(Fraction(1e-12 if self.abs is None else self.abs), Fraction(relative) * Fraction(size))

    def __repr__(self) -> str:
        return f"approx({self.expected!r})"


def fixture(function: Any = None, **options: Any) -> Any:
    """Marks a fixture of a test function; a generator's rest runs afterwards. Every scope is a function's."""

    def mark(target: Any) -> Any:
        target._fixture = options.get("name") or target.__name__
        return target

    return mark(function) if callable(function) else mark


class _Mark:
    """pytest.mark: parametrize, skip, skipif and xfail mean something, any other mark nothing."""

    def parametrize(self, names: Any, rows: Any, ids: Any = None) -> Any:
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

        def mark(target: Any) -> Any:
            cases = [dict(zip(names, [row] if len(names) == 1 else row)) for row in map(_values, rows)]  # noqa: B905
            target._cases = [{**outer, **inner} for outer in getattr(target, "_cases", [{}]) for inner in cases]
            return target

        return mark

    def skipif(self, condition: Any, reason: str = "") -> Any:
        return self.skip(reason) if condition else lambda target: target

    def skip(self, reason: Any = "") -> Any:
        def mark(target: Any) -> Any:
            target._skip = True
            return target

        return mark(reason) if callable(reason) else mark

    def __getattr__(self, name: str) -> Any:
        def mark(*args: Any, **_: Any) -> Any:
            return args[0] if len(args) == 1 and callable(args[0]) else lambda target: target

        return mark


class _Param(tuple):
    pass


def param(*values: Any, id: Any = None, marks: Any = ()) -> _Param:
    return _Param(values)


def _values(row: Any) -> Any:
    return (row[0] if len(row) == 1 else tuple(row)) if isinstance(row, _Param) else row


mark = _Mark()
