"""Stand-ins for a check's modules, which hold what it expects: what the policy's code asks of them is told."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HARMLESS = ("__file__", "__name__", "__spec__", "__doc__", "__package__", "__loader__", "__path__", "__class__",
            "__version__", "__getattr__", "__warningregistry__", "__builtins__", "__all__")  # fmt: skip


def guard(watch: Any, is_checks: Callable[[Any], bool]) -> None:
    """Put a stand-in for every module of the check's.

    Its own dictionary is empty but for what is no secret; everybody else finds the module behind it.
    """
    kind, frame, harmless = type(sys), sys._getframe, frozenset(HARMLESS)

    def asks(who: Any) -> bool:
        while who is not None and who.f_code.co_filename.endswith("/inspect.py"):
            who = who.f_back
        return who is not None and watch.is_from(who)

    def stand_in(module: Any) -> Any:
        class Module(kind):  # type: ignore[misc, valid-type]
            def __getattribute__(self, name: str) -> Any:
                if name not in harmless and asks(frame(1)):
                    watch.say("innards", f"{module.__name__}.{name}")
                return Module if name == "__class__" else getattr(module, name)

            def __setattr__(self, name: str, value: Any) -> None:
                if asks(frame(1)):
                    watch.say("replaced", f"{module.__name__}.{name}")
                setattr(module, name, value)

            def __delattr__(self, name: str) -> None:
                delattr(module, name)

            def __dir__(self) -> list[str]:
                return dir(module)

        Module.__name__ = Module.__qualname__ = "module"
        return Module(module.__name__)

    for name, module in sys.modules.copy().items():
        if type(module) is kind and is_checks(module):
            sys.modules[name] = stand_in(module)
