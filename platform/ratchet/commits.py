"""What follows a commit: it runs once the transaction holds, and its failure is logged, never the caller's."""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.db import transaction


def after_commit(function: Callable[..., object], *arguments: Any) -> None:
    """Call `function(*arguments)` after the commit of the transaction that is open; at once where none is.

    Django names a callback that failed by its `__qualname__`, which a partial has not: the failure would then end what
    waits behind it, and reach the caller of something that is committed.
    """
    call = partial(function, *arguments)
    call.__qualname__ = getattr(function, "__qualname__", repr(function))  # type: ignore[attr-defined]
    transaction.on_commit(call, robust=True)
