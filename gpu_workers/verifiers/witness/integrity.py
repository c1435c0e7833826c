"""What a check's interpreter is made of, as it was before the policy's first line and as it is when the check ends.

Modules of the library with their functions and classes are compared by identity; a dictionary that was changed and put
back is told by its version, which Python counts on. The built-in types' operators are read as bytes, which the wrapper
compares: no operator of this process has a say in that.
"""

from __future__ import annotations

# ruff: noqa: PTH120
import binascii
import gc
import os
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

TYPES = (int, str, float, bool, complex, list, dict, tuple, set, frozenset, bytes, bytearray, range, type(None), type,
         object)  # fmt: skip
FREE = frozenset((
    "warnings.showwarning", "warnings.formatwarning", "warnings.filters", "threading.excepthook", "builtins.print",
    "builtins.input", "builtins._", "ssl._create_default_https_context", "ssl.create_default_context",
    "time.tzname", "time.timezone", "time.altzone", "time.daylight",
))  # fmt: skip
STARTS = ("settrace", "setprofile", "exit", "_getframe", "getrefcount", "intern", "getsizeof", "getrecursionlimit")
VERSION_AT, DICT_AT, SIZE_AT = 24, 264, 32  # of a dictionary's counter; in a type, of its dictionary and basic size
TABLES = ((96, 288), (104, 80), (112, 24))  # where a type has its operators' tables, and their sizes
LIBRARY = (os.path.dirname(os.__file__) + "/", "/usr/lib/", "/usr/local/lib/")
MAX_FOUND = 40
FUNCTION, MODULE = type(lambda: 0), type(sys)


class Memory:
    """This process's memory, read through its own file; `works` only where a type's layout is as it is known."""

    def __init__(self) -> None:
        self.fd = -1
        self.pread = posix.pread
        try:
            self.fd = posix.open("/proc/self/mem", posix.O_RDONLY | posix.O_CLOEXEC)
            self.works = sys.maxsize > 2**32 and all(self.word(id(t) + SIZE_AT) == t.__basicsize__ for t in TYPES)
        except OSError:
            self.works = False

    def word(self, address: int) -> int:
        return int.from_bytes(self.pread(self.fd, 8, address), "little")

    def version(self, owner: Any) -> int:
        """Of the dictionary of a module or class."""
        if not self.works:
            return 0
        at = self.word(id(owner) + DICT_AT) if isinstance(owner, type) else id(owner.__dict__)
        return self.word(at + VERSION_AT) if at else 0

    def types(self) -> bytes:
        """The operators of the built-in types, but for what Python itself changes there."""
        if not self.works:
            return b""
        parts = []
        for kind in TYPES:
            whole = self.pread(self.fd, 408, id(kind))
            parts += [whole[24:168], whole[184:352], whole[392:408]]
            for at, size in TABLES:
                table = int.from_bytes(whole[at : at + 8], "little")
                parts.append(self.pread(self.fd, size, table) if table else b"")
        return b"".join(parts)


class Integrity:
    """`roots`: beginnings of the policy's paths; `made`: names of code that it compiled."""

    def __init__(self, roots: tuple[str, ...], made: set[str], say: Callable[[bytes], Any]) -> None:
        self.roots, self.made, self.say = roots, made, say
        self.memory = Memory()
        self.kept: dict[Any, tuple[str, dict[str, Any], int]] = {}
        self.modules: dict[str, Any] = {}
        for name, module in loaded(self.roots):
            self.modules[name] = module
            if not getattr(module.__dict__.get("__spec__"), "_initializing", False):
                self.keep(module, name)
                for key, value in list(module.__dict__.items()):
                    if isinstance(value, type) and value not in self.kept:
                        self.keep(value, f"{name}.{key}")
        self.finders = {id(finder) for finder in (*sys.meta_path, *sys.path_hooks)}
        self.tell_types()

    def keep(self, owner: Any, name: str) -> None:
        self.kept[owner] = name, dict(vars(owner)), self.memory.version(owner)

    def tell_types(self) -> None:
        state = self.memory.types()
        if state:
            self.say(b"types %d" % binascii.crc32(state))

    def look(self) -> list[tuple[str, str]]:
        """(kind, dotted name) of what is not as it was.

        `replaced` by what is the policy's, `equal`: such an object; `changed` by whoever it was, in the check perhaps.
        """
        self.tell_types()
        found: list[tuple[str, str]] = []
        for part in (self.foreign, self.imports, self.pleasers, self.changes):
            try:
                found += [line for line in part() if line[1] not in FREE and line not in found][:MAX_FOUND]
            except Exception:  # noqa: S112  what the policy left behind does not hide the rest
                continue
        return found

    def imports(self) -> Iterator[tuple[str, str]]:
        """Modules and finders of the policy's in the place of a library's."""
        for name, module in self.modules.items():
            now = sys.modules.get(name, module)
            if now is not module and self.is_policys(now):
                yield "replaced", f"sys.modules[{name}]"
        for finder in (*sys.meta_path, *sys.path_hooks):
            if id(finder) not in self.finders and self.is_policys(finder):
                yield "replaced", f"sys.{type(finder).__name__}"

    def changes(self) -> Iterator[tuple[str, str]]:
        for owner, (name, before, version) in self.kept.items():
            if self.memory.works and self.memory.version(owner) == version:
                continue
            now = vars(owner)
            keys = [key for key in before if now.get(key) is not before[key]]
            keys = [key for key in keys if self.counts(owner, name, key, before[key])]
            added = [key for key in now if key not in before]
            keys += [key for key in added if self.shadows(owner, key)]
            for key in keys:
                value = now.get(key)
                is_own = self.is_own_function(value) or self.is_policys(value)
                yield "replaced" if is_own else "changed", f"{name}.{key}"
            is_same = not added and all(now.get(key) is before[key] for key in before)
            if is_same and self.memory.works and name not in ("sys", "warnings") and not own_state(owner):
                yield "changed", f"{name}, which was put back"

    def counts(self, owner: Any, name: str, key: str, old: Any) -> bool:
        if name == "sys":
            return key in STARTS
        if isinstance(old, MODULE) or key in (
            "__annotations__",
            "__doc__",
            "__abstractmethods__",
            "__warningregistry__",
        ):
            return False
        has_source = "__file__" in vars(owner) or isinstance(owner, type)
        return callable(old) or hasattr(type(old), "__get__") or not has_source

    def shadows(self, owner: Any, key: str) -> bool:
        """Whether a new name takes the place of one that was found elsewhere."""
        if isinstance(owner, type):
            return key[:2] == "__" == key[-2:] and any(key in vars(base) for base in owner.__mro__[1:])
        return owner is not sys and key in vars(sys.modules["builtins"]) and owner is not sys.modules["builtins"]

    def foreign(self) -> Iterator[tuple[str, str]]:
        """Functions of the policy's in what of the library was loaded later, or all of it where no version tells."""
        for name, module in loaded(self.roots):
            if self.memory.works and module in self.kept:
                continue
            for key, value in list(module.__dict__.items()) if module is not sys else ():
                if self.is_own_function(value):
                    yield "replaced", f"{name}.{key}"
                elif isinstance(value, type) and top(value.__dict__.get("__module__")) == top(name):
                    yield from (
                        ("replaced", f"{name}.{key}.{k}")
                        for k, v in list(value.__dict__.items())
                        if self.is_own_function(v)
                    )

    def is_own_function(self, value: Any) -> bool:
        value = getattr(value, "__func__", None) if type(value) in (staticmethod, classmethod) else value
        if type(value) is not FUNCTION:
            return False
        place = value.__globals__.get("__file__")
        return str(place).startswith(self.roots) or (place is None and value.__code__.co_filename in self.made)

    def is_policys(self, value: Any) -> bool:
        """Whether an object, or the class of it, is of the policy's modules."""
        kind = value if isinstance(value, type) else type(value)
        if isinstance(value, MODULE) and kind is MODULE:
            place = value.__dict__.get("__file__")
            return place is None or str(place).startswith(self.roots)
        home = sys.modules.get(str(kind.__dict__.get("__module__")))
        return str(getattr(home, "__file__", "")).startswith(self.roots)

    def pleasers(self) -> Iterator[tuple[str, str]]:
        """Classes with objects that equal what they cannot know: only the policy's and those that mocks make."""
        suspects = [kind for kind in subclasses(object) if kind not in self.kept and self.compares(kind)]
        if not suspects:
            return
        alive = gc.get_objects()
        for kind in suspects:
            objects = [thing for thing in alive if type(thing) is kind][:3]
            try:
                base: Any = next(base for base in kind.__mro__ if base in TYPES)
                objects = objects or [base.__new__(kind)]
            except Exception:  # noqa: S112  it cannot be made without arguments
                continue
            if any(pleases(thing) for thing in objects):
                yield "equal", f"an object of {kind.__dict__.get('__module__')}.{kind.__name__} that equals everything"

    def compares(self, kind: type) -> bool:
        own = next((vars(base)["__eq__"] for base in kind.__mro__ if "__eq__" in vars(base)), None)
        is_mocks = "unittest.mock" in sys.modules and issubclass(kind, sys.modules["unittest.mock"].NonCallableMock)
        return is_mocks or (self.is_own_function(own) or self.is_policys(own))


def pleases(thing: Any) -> bool:
    """Whether an object equals two that nobody knows: a blank one, and a number and a text by chance."""
    number = int.from_bytes(posix.urandom(6), "little")
    try:
        return all((thing == other) is True for other in (object(), number, str(number), [number]))
    except BaseException:
        return False


def subclasses(kind: type) -> Iterator[type]:
    known: set[int] = set()
    left: list[Any] = [kind]
    while left:
        for below in type.__subclasses__(left.pop()):
            if id(below) not in known:
                known.add(id(below))
                left.append(below)
                yield below


def loaded(roots: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Modules of the library that are loaded, by name."""
    for name, module in list(sys.modules.items()):
        if type(module) is MODULE and name != "__main__":
            place = module.__dict__.get("__file__")
            origin = getattr(module.__dict__.get("__spec__"), "origin", None)
            is_file = isinstance(place, str) and (place.startswith(LIBRARY) or "-packages/" in place)
            is_file = is_file and not str(place).startswith(roots)
            if is_file or (place is None and origin in ("built-in", "frozen")):
                yield name, module


def top(name: Any) -> str:
    return str(name).partition(".")[0]


def own_state(owner: Any) -> bool:
    """Whether a module may change its own names: a function of it has them as global ones to write."""
    if isinstance(owner, type):
        return False
    from opcode import opmap

    store = opmap["STORE_GLOBAL"]
    values = list(owner.__dict__.values())
    values += [inner for value in values if isinstance(value, type) for inner in vars(value).values()]
    codes = [value.__code__ for value in values if type(value) is FUNCTION]
    while codes:
        code = codes.pop()
        if store in code.co_code[::2]:
            return True
        codes += [const for const in code.co_consts if isinstance(const, type(code))]
    return False


def start(roots: tuple[str, ...], made: set[str], say: Callable[[bytes], Any]) -> Callable[[], list[tuple[str, str]]]:
    return Integrity(roots, made, say).look
