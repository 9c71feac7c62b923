"""What Spark's workers are sent, and what they say when something fails there.

A worker may have no Lowmark: its Python is another one, or its machine has none. What it is sent is
taken apart by code that comes along, so that it says that, and what to do. And an error of ours
says in words what is wrong: a traceback of Spark's worker, before these words, would hide them.
Any other error keeps its traceback.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from types import FunctionType, GeneratorType
from typing import Any, TypeVar

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource import DataSource

from lowmark.errors import LowmarkError

T = TypeVar("T")
HIDE = "SPARK_HIDE_TRACEBACK"
"""A worker that has this in its environment gives the words of an error alone. It ends with it."""
_OF_WORKERS = (
    "PYTHON_WORKER_FACTORY_PORT",
    "PYTHON_WORKER_FACTORY_SOCK_PATH",
    "PYTHON_WORKER_FACTORY_SOCK_DIR",
    "PYTHON_WORKER_FACTORY_SECRET",
)
"""What Spark tells its workers by their environment, or the process that they are forked from."""


def worded(cls: type[T]) -> type[T]:
    """A class whose public methods Spark calls: their errors come as words."""
    if isinstance(found := vars(cls).get("__init__"), FunctionType):
        cls.__init__ = _worded(found)  # type: ignore[method-assign]
    return worded_function(cls)


def worded_function(cls: type[T]) -> type[T]:
    """The same of a table function: Spark looks at what its constructor takes, and that stays."""
    for name, found in list(vars(cls).items()):
        if name.startswith("_"):
            continue
        if isinstance(found, FunctionType):
            setattr(cls, name, _worded(found))
        elif isinstance(found, staticmethod):
            setattr(cls, name, staticmethod(_worded(found.__func__)))
    return cls


def _worded(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _Words():
            made = function(*args, **kwargs)
        return _each(made) if isinstance(made, GeneratorType) else made

    return call


def _each(made: Iterator[Any]) -> Iterator[Any]:
    with _Words():
        yield from made


class _Words:
    """Where an error of ours is about to leave for Spark."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, LowmarkError) and any(name in os.environ for name in _OF_WORKERS):
            os.environ[HIDE] = "1"


class Carried:
    """What tasks are sent; where there is no Lowmark, it says so."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        made: Any = super().__reduce_ex__(2)
        return _loader(), (_packed(made[:3]),)


def _packed(thing: object) -> bytes:
    packed: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]
    data: bytes = packed.dumps(thing)
    return data


def _loader() -> Callable[[bytes], object]:
    """A function that is sent with its code: nothing of this module may be used inside."""

    def load(data: bytes) -> object:
        import pickle  # noqa: PLC0415

        try:
            make, arguments, state = pickle.loads(data)  # noqa: S301 - Spark's own, by way of this process
        except ImportError as error:
            import os  # noqa: PLC0415
            import socket  # noqa: PLC0415
            import sys  # noqa: PLC0415

            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise ImportError(
                f"{error}: a worker of Spark on {socket.gethostname()} uses {sys.executable}, which"
                " can't import Lowmark\nhint: install it there, the same version as in the driver;"
                " or name a Python that has it, before the session is started:"
                ' os.environ["PYSPARK_PYTHON"] = ...'
            ) from None
        made = make(*arguments)
        if state:
            made.__dict__.update(state)
        return made

    return load


def carried_source(source: type[DataSource]) -> type[DataSource]:
    """A source as a session is given it: with its code, which fetches the real one."""
    load, reference, kind = _loader(), _packed((_itself, (source,), None)), source.name()

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return kind

        def _there(self) -> DataSource:
            found: Any = load(reference)
            made: DataSource = found(self.options)
            return made

        def schema(self) -> Any:
            return self._there().schema()

        def reader(self, schema: Any) -> Any:
            return self._there().reader(schema)

        def streamReader(self, schema: Any) -> Any:  # noqa: N802
            return self._there().streamReader(schema)

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return self._there().writer(schema, overwrite)

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            return self._there().streamWriter(schema, overwrite)

    return Source


def _itself(source: type[DataSource]) -> type[DataSource]:
    return source
