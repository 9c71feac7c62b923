"""The source that Spark knows by the name `lowmark`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from lowmark.faces import deferred
from lowmark.frames.carrying import worded
from lowmark.frames.columns import spark_schema
from lowmark.frames.options import Options
from lowmark.frames.reading import LogReader, PushingReader, TableReader, schema_of
from lowmark.frames.sink import BatchWriter, StreamWriter
from lowmark.frames.stream import StreamReader

if TYPE_CHECKING:
    from lowmark.frames.change_stream import ChangeStreamReader
    from lowmark.frames.changes import ChangesReader
else:
    (ChangeStreamReader,) = deferred("lowmark.frames.change_stream", "ChangeStreamReader")
    (ChangesReader,) = deferred("lowmark.frames.changes", "ChangesReader")

_PUSHES: Final = "pyspark.sql.worker.data_source_pushdown_filters"


@worded
class LowmarkSource(DataSource):
    """A table of Lowmark; `lowmark.frames.options` says what can be asked of it."""

    @classmethod
    def name(cls) -> str:
        """What users call it by."""
        return "lowmark"

    def schema(self) -> StructType:
        """The columns of the table, or those that were asked for."""
        return spark_schema(schema_of(Options.read(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the table, or of its log."""
        options = Options.read(self.options).for_read()
        if options.feed:
            return ChangesReader(options, schema)
        if options.reads_log:
            return LogReader(options, schema)
        return PushingReader(options, schema) if _pushes() else TableReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A reader of the log, in micro-batches."""
        options = Options.read(self.options).for_stream()
        kind = ChangeStreamReader if options.feed else StreamReader
        return kind(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of a DataFrame."""
        return BatchWriter(Options.write(self.options), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """A writer of a stream: Spark makes one for each batch."""
        return StreamWriter(Options.write(self.options, stream=True), schema, overwrite=overwrite)


def _pushes() -> bool:
    """Whether Spark is about to push filters: it does so in a process that runs this module."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHES in sys.modules or (main is not None and main.name == _PUSHES)
