"""What runs where tasks run.

The outermost function is sent whole, with its code: it must say what is missing on a machine that
has no Lowmark, so it can't be imported from there. It looks for the package, compares versions,
and imports the rest: above all the function that is to be called, by its name.

An error is an answer, not a failure of the task: Spark would try again three times what fails
every time. It is told to the driver by an accumulator, which reaches it when this task ends and not
only when all have ended. What is left to Spark are processes that die.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from lowmark.errors import LowmarkError, Rejected
from lowmark.fault import revived
from lowmark.spark.errors import TaskFailed, WorkersUnfit


class Tell(Protocol):
    """A way to tell the driver something before the job has ended."""

    def add(self, term: list[dict[str, Any]]) -> None:
        """Tell it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A function by its name, to be found by import."""

    module: str
    name: str


def name_of(function: Callable[[bytes], bytes]) -> Named:
    """A function's name; an error if it would not be found by it."""
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__qualname__", None) or repr(function)
    try:
        found = getattr(importlib.import_module(module), name, None)
    except (ImportError, ValueError):
        found = None
    if found is not function or module == "__main__":
        raise Rejected(
            f"{module}.{name} can't be sent to Spark's workers",
            hint="Give a function of a module, not a method, a lambda or one inside another: the"
            " workers import it by its name.",
        )
    return Named(module=module, name=name)


def task(
    named: Named, *, version: str, run: str, tell: Tell
) -> Callable[[Iterable[list[bytes]]], Iterator[bytes]]:
    """The function of one task, to be sent with its code."""
    module, name = named.module, named.name

    # Nothing of this module may be used inside: that would be an import of it.
    def work(packs: Iterable[list[bytes]]) -> Iterator[bytes]:
        import importlib  # noqa: PLC0415
        import platform  # noqa: PLC0415
        import socket  # noqa: PLC0415
        import sys  # noqa: PLC0415
        import traceback  # noqa: PLC0415

        def trouble(kind: str, **parts: object) -> None:
            where = {
                "host": socket.gethostname(),
                "python": f"{sys.executable} ({platform.python_version()})",
            }
            tell.add([{"run": run, "trouble": kind, **where, **parts}])

        try:
            found = importlib.import_module("lowmark").__version__
            if found != version:
                trouble("version", found=found, wanted=version)
                return
            root = importlib.import_module("lowmark.errors").LowmarkError
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            trouble("import", why=f"{type(error).__name__}: {error}")
            return
        try:
            for pack in packs:
                for piece in pack:
                    yield function(piece)
        except root as error:
            # Only now: it costs a worker its first half second.
            carried = importlib.import_module("lowmark.fault").carried
            trouble("error", error=carried(error))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            trouble("broken", why=text, traceback=traceback.format_exc())

    return work


def error_of(told: dict[str, Any], *, label: str) -> LowmarkError:
    """What a task told, as the error that it stands for."""
    where = f"on {told['host']}, with {told['python']}"
    match told["trouble"]:
        case "error":
            return revived(told["error"])
        case "version":
            return WorkersUnfit(
                f"Spark's workers have Lowmark {told['found']}, and this is {told['wanted']}",
                detail=f"So it is {where}.",
                hint="Install the same version in the Python that the workers use"
                " (spark.pyspark.python).",
            )
        case "import":
            return WorkersUnfit(
                "Spark's workers can't import Lowmark",
                detail=f"{told['why']}; {where}.",
                hint="Install it in that Python, the same version as here, or name a Python that"
                " has it in spark.pyspark.python.",
            )
        case _:
            return TaskFailed(
                f"{label} failed: {told['why']}",
                detail=f"It was {where}.\n{told['traceback']}",
            )
