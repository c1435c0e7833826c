"""How one test is called: with what it asks for by name, between its setup and its end."""

from __future__ import annotations

import inspect
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_workers.verifiers.inside import pytest_shim


def is_fixture(item: Any) -> bool:
    return inspect.isfunction(item) and "_fixture" in vars(item)


def as_function(test: unittest.TestCase) -> Any:
    def run() -> None:
        result = unittest.TestResult()
        test.run(result)
        for _, text in (*result.errors, *result.failures):
            raise AssertionError(text.strip().splitlines()[-1])
        if result.skipped or result.unexpectedSuccesses:
            raise pytest_shim.Skipped

    return run


def with_fixtures(function: Any, case: dict, fixtures: dict, kind: Any) -> None:
    """Call a test with what it asks for by name; what fixtures left open is closed, the last one first."""
    made: dict = dict(case)
    opened: list[Iterator[Any]] = []
    instance = kind() if kind is not None else None
    for setup in ("setup_method", "setUp"):
        if instance is not None and hasattr(instance, setup):
            _call_setup(getattr(instance, setup), function)
    with tempfile.TemporaryDirectory() as folder:

        def get(name: str) -> Any:
            if name not in made:
                if name == "tmp_path":
                    made[name] = Path(folder)
                elif name in fixtures:
                    value = _invoke(fixtures[name])
                    if inspect.isgenerator(value):
                        opened.append(value)
                        value = next(value)
                    made[name] = value
                else:
                    raise LookupError(f"fixture {name!r} is unknown to this runner")
            return made[name]

        def _invoke(target: Any) -> Any:
            names = [name for name in inspect.signature(target).parameters if name != "self"]
            values = [get(name) for name in names]
            takes_self = "self" in inspect.signature(target).parameters
            return target(instance, *values) if takes_self else target(*values)

        try:
            _invoke(function)
        finally:
            for generator in reversed(opened):
                next(generator, None)
            if instance is not None and hasattr(instance, "teardown_method"):
                _call_setup(instance.teardown_method, function)


def _call_setup(method: Any, function: Any) -> None:
    method(function) if inspect.signature(method).parameters else method()
