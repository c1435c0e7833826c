"""Hands no frame to handlers of signals: in a check's process it leads to the names of the code that was interrupted.

Part of the interpreter before the check's first line. A handler is called with None, as Python's documentation allows.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Frameless:
    """What Python calls in a handler's place."""

    __slots__ = ("handler",)

    def __init__(self, handler: Any) -> None:
        self.handler = handler

    def __call__(self, number: int, _: object) -> Any:
        return self.handler(number, None)


def install() -> None:
    register, registered = _signal.signal, _signal.getsignal

    def unwrapped(handler: Any) -> Any:
        return handler.handler if type(handler) is Frameless else handler

    def signal(signalnum: int, handler: Any, /) -> Any:
        is_own = callable(handler) and handler is not _signal.default_int_handler
        return unwrapped(register(signalnum, Frameless(handler) if is_own else handler))

    def getsignal(signalnum: int, /) -> Any:
        return unwrapped(registered(signalnum))

    signal.__doc__, getsignal.__doc__ = register.__doc__, registered.__doc__
    _signal.signal, _signal.getsignal = signal, getsignal
