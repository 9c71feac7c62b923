"""Names of a package that are imported when they are first used.

A package says in its `__init__.py` which names of its modules others use. If all these modules were
imported with the first of them, a client of a server would start by importing Raft, and a command
that lists tables by importing compaction. So a package imports them for the type checker alone:

    if TYPE_CHECKING:
        from lowmark.log.config import LogConfig
        ...
    __all__ = ["LogConfig", ...]
    __getattr__, __dir__ = face(__name__)

`face` takes what stands there from the compiled module, where the branch that does not run still
is; so nothing is said twice. `from lowmark.log import LogConfig` imports `lowmark.log.config` and
what that needs, and the name is the package's from then on.

    deferred   the same for functions that a module calls seldom: each imports its module when it
               is called first

Which modules a command and a task of Spark may import is kept by `tests/cli/test_starting.py`.
"""

from __future__ import annotations

import dis
import importlib
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any


def face(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package, for names that it imports under TYPE_CHECKING."""
    module = sys.modules[package]
    code = sys._getframe(1).f_code
    places: dict[str, tuple[str, str]] = {}

    def __getattr__(name: str) -> Any:  # noqa: N807
        if not places:
            places.update(_imported_in(code))
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, own_name = places[name]
        found = getattr(importlib.import_module(home), own_name)
        setattr(module, name, found)
        return found

    def __dir__() -> list[str]:  # noqa: N807
        return sorted({*vars(module), *module.__all__})

    return __getattr__, __dir__


def _imported_in(code: CodeType) -> dict[str, tuple[str, str]]:
    """By its name there: the module that it is from, and its name in that one."""
    places: dict[str, tuple[str, str]] = {}
    home = own_name = ""
    for step in dis.get_instructions(code):
        match step.opname:
            case "IMPORT_NAME":
                home = step.argval
            case "IMPORT_FROM":
                own_name = step.argval
            case "STORE_NAME" if own_name:
                places[step.argval] = home, own_name
                own_name = ""
    return places


def deferred(module: str, *names: str) -> tuple[Callable[..., Any], ...]:
    """Functions of a module that is imported when one of them is first called."""

    def of(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            return getattr(importlib.import_module(module), name)(*arguments, **named)

        call.__name__ = call.__qualname__ = name
        call.__module__ = module
        return call

    return tuple(of(name) for name in names)
