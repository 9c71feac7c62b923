"""Which Python Spark starts: it looks for sources and functions by a name, not by who asks.

A session that is started in a script takes `python3` unless `PYSPARK_PYTHON` says otherwise, and in
a virtual environment that was not activated this is the system's: it has neither Lowmark nor what
else the script uses, and `format("lowmark")` is not found. So importing `lowmark.spark` names this
Python, if all of these are true: nothing else was named, `python3` is another one, and no Java
process has been started yet, which has looked already. What a user names, before or after, counts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark import SparkContext

NAMED: Final = "PYSPARK_PYTHON"
_OTHERS: Final = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT")
"""Named for the driver alone; or there is a Java process, which has started us."""
_UNTOLD: Final = "python3"
"""What PySpark takes then."""
_by_us = ""
"""What was named here."""


def name_python(environment: MutableMapping[str, str] = os.environ) -> None:
    """Have sessions that this process starts use this Python, unless they are told otherwise."""
    global _by_us  # noqa: PLW0603
    if environment.get(NAMED) or any(name in environment for name in _OTHERS):
        return
    context = sys.modules.get("pyspark.core.context")
    if context is not None and context.SparkContext._gateway is not None:
        return
    if sys.executable and not _is_found_by_name(environment):
        environment[NAMED] = _by_us = sys.executable


def _is_found_by_name(environment: MutableMapping[str, str]) -> bool:
    """Whether `python3` is of the environment that we run in. Both may be links to one file: it is
    the folder that says which packages they have.
    """
    for folder in os.get_exec_path(environment):
        if os.access(os.path.join(folder, _UNTOLD), os.X_OK):
            return os.path.realpath(folder) == os.path.realpath(os.path.dirname(sys.executable))
    return False


@contextmanager
def python_of(context: SparkContext) -> Iterator[None]:
    """Have what is put together here run in the right Python, if the session was not told which.

    It is what `spark.pyspark.python` says, at which PySpark does not look; or on this machine the
    Python that we run in. The session is left as it was.
    """
    before = context.pythonExec
    if before in {_UNTOLD, _by_us}:
        local = str(context.master).startswith("local")
        told = context.getConf().get("spark.pyspark.python")
        context.pythonExec = told or (sys.executable if local else before)
    try:
        yield
    finally:
        context.pythonExec = before
