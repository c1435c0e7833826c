"""What stands in the check's process for named tuples, exceptions, signatures and dataclasses of a candidate.

They are made here of names and of values that crossed: no code of the candidate comes with them.
"""

from __future__ import annotations

import builtins
import collections
from typing import Any

from gpu_workers.verifiers.inside import server
from gpu_workers.verifiers.inside.handles import Handle

NOT_FROM_A_CALL = (StopIteration, StopAsyncIteration)
STOPPING = frozenset({"__next__", "send", "throw", "__anext__", "asend", "athrow"})  # methods that may end an iteration


class Stopped(RuntimeError):
    """A function of the candidate raised what only an iterator may raise: no loop of the check ends by it.

    `stands_for` is the exception's own class, which `pytest.raises` knows.
    """

    def __init__(self, original: BaseException) -> None:
        super().__init__(f"the candidate raised {type(original).__name__}")
        self.stands_for = type(original)


def named_class(name: str, fields: list, kind: Any) -> Any:
    """Of the same name and fields; `kind` stands for the candidate's class. Raises ValueError for other names."""
    if not all(map(server.is_field, fields)):
        raise ValueError("a named tuple's field cannot be called so")
    made = collections.namedtuple(name if name.isidentifier() else "Named", fields, module="candidate")  # type: ignore[misc]
    made._candidate_class = kind  # type: ignore[attr-defined]
    return made


def named_tuple(kind: Any, items: list) -> Any:
    """One of these; objects in it are its methods by name. Raises ValueError where they pose as methods of data."""
    if len(kind._fields) != len(items):
        raise ValueError("a named tuple of another length")
    for name, item in zip(kind._fields, items):  # noqa: B905  Python 3.9
        if isinstance(item, Handle):
            if server.is_method(name):
                raise ValueError("an object in the place of a method")
            object.__setattr__(item, "_handle_name", name)
            object.__setattr__(item, "_handle_of", kind.__name__)
    return tuple.__new__(kind, items)


def exception_class(data: dict, known: dict) -> Any:
    """A class of ours that stands for the candidate's, so that tests can name and catch it. `known`: by number."""
    base = getattr(builtins, str(data["builtin"]), Exception)
    if not (isinstance(base, type) and issubclass(base, (Exception, SystemExit))):
        base = Exception
    for ref, name in reversed(data["exception"]):
        base = known.setdefault(int(ref), type(str(name), (base,), {"__str__": _speaking(base)}))
    return base


def _speaking(base: Any) -> Any:
    """How an exception says what the candidate's would."""

    def say(error: Any) -> str:
        said = vars(error).get("_said")
        return said if type(said) is str else base.__str__(error)

    return say


def exception(kind: Any, args: list, attributes: dict, said: Any) -> BaseException:
    """The exception with what the candidate's says of itself."""
    try:
        error: BaseException = kind(*args)
    except TypeError:  # e.g. UnicodeDecodeError, whose arguments did not cross
        error = Exception(f"{kind.__name__}: {args}")
    own = {name: value for name, value in attributes.items() if name.isidentifier() and not name.startswith("_")}
    vars(error).update({name: value for name, value in own.items() if not hasattr(type(error), name)})
    if type(said) is str:
        vars(error)["_said"] = said
    return error


def signature(rows: Any) -> Any:
    """Of [name, kind, defaults: none or one] a parameter. Raises AttributeError where it has none."""
    import inspect  # whoever asks has it

    if type(rows) is not list:
        raise AttributeError("__signature__")
    kinds = {kind.name: kind for kind in inspect._ParameterKind}
    return inspect.Signature(
        [
            inspect.Parameter(str(name), kinds[kind], default=default[0] if default else inspect.Parameter.empty)
            for name, kind, default in rows
        ]
    )


def install() -> None:
    """Let `dataclasses` ask the candidate's process of objects that live there."""
    import dataclasses  # a program of verifiers need not wait for it

    for name in ("asdict", "astuple", "is_dataclass", "replace"):
        setattr(dataclasses, name, _asking(name, getattr(dataclasses, name)))
    real = dataclasses.fields

    def fields(value: Any) -> Any:
        if not isinstance(value, Handle):
            return real(value)
        names = value._operate("fields")
        if type(names) is not list:
            raise TypeError("must be called with a dataclass type or instance")
        return real(dataclasses.make_dataclass("Candidate", [str(name) for name in names]))

    setattr(dataclasses, "fields", fields)  # noqa: B010


def _asking(name: str, real: Any) -> Any:
    def ask(value: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(value, Handle):
            return real(value, *args, **kwargs)
        if name == "replace":
            return value._operate(name, kwargs)
        return value._operate(name)

    return ask
