"""An Iceberg table of files that are there: one snapshot, in the layout that needs no catalog.

    data/part-00000-00000.parquet        its columns have the ids of the table's schema
    metadata/<…>.avro                    the snapshot's list of manifests, and its manifest
    metadata/v1.metadata.json            the table
    metadata/version-hint.text           1

That is how Iceberg's Hadoop tables look: readers open them by the directory, or by the metadata
file, and any catalog can register that.

Iceberg names all files by whole paths. They are those of the destination, though everything is
written aside: `_Aside` opens one for the other.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io.pyarrow import (
    PyArrowFile,
    PyArrowFileIO,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import StagedTable, Transaction
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Record

from lowmark.export.columns import UUID, columns_in
from lowmark.export.errors import ColumnUnfit, DestinationRefused
from lowmark.export.files import DataFile

_METADATA = "metadata/v1.metadata.json"
_HINT = "metadata/version-hint.text"
_ID = "PARQUET:field_id"
_RESERVED = frozenset(
    {
        "_deleted",
        "_file",
        "_last_updated_sequence_number",
        "_partition",
        "_pos",
        "_row_id",
        "_spec_id",
    }
)
"""Columns that every Iceberg table has by itself."""
_NOT_IN_PATHS = frozenset("#?%")
"""Paths are URLs, and readers do not agree on how these are written there."""


class IcebergTarget:
    """See `Target`."""

    folder = "data"

    def __init__(
        self, schema: pa.Schema, *, path: str, name: str, notes: Mapping[str, str]
    ) -> None:
        for column in schema.names:
            if column.lower() in _RESERVED:
                raise ColumnUnfit(
                    column,
                    why="every Iceberg table has a column of that name by itself",
                    hint="Leave it out, or rename it by `lowmark table alter`.",
                )
        bad = sorted(set(path) & _NOT_IN_PATHS)
        if bad:
            raise DestinationRefused(
                f"an Iceberg table can't be in {path}: its path has a {bad[0]!r}",
                detail="Iceberg names files by URLs.",
                hint="Name another directory.",
            )
        self._name = name
        self._metadata = new_table_metadata(
            schema=pyarrow_to_schema(_with_ids(columns_in(schema, _leaf, format_name="Iceberg"))),
            partition_spec=UNPARTITIONED_PARTITION_SPEC,
            sort_order=UNSORTED_SORT_ORDER,
            location=f"file://{path}",
            properties=dict(notes),
        )
        self.schema = schema_to_pyarrow(self._metadata.schema(), include_field_ids=True)

    def commit(self, root: str, files: Sequence[DataFile]) -> Sequence[DataFile]:
        """See `Target`."""
        location = self._metadata.location
        io = _Aside(location, root)
        table = StagedTable(
            identifier=(self._name,),
            metadata=self._metadata,
            metadata_location=f"{location}/{_METADATA}",
            io=io,
            catalog=NoopCatalog("none"),
        )
        # It is never committed to a catalog: what it comes to is written as it is.
        transaction = Transaction(table)
        with transaction.update_snapshot().fast_append() as appended:
            for file in files:
                appended.append_data_file(self._file(root, file))
        made = io.new_output(table.metadata_location)
        ToOutputFile.table_metadata(transaction.table_metadata, made)
        with open(os.path.join(root, _HINT), "w", encoding="ascii") as hint:
            hint.write("1")
        return files

    def _file(self, root: str, file: DataFile) -> IcebergFile:
        metadata = self._metadata
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=pq.read_metadata(os.path.join(root, file.name)),
            stats_columns=compute_statistics_plan(metadata.schema(), metadata.properties),
            parquet_column_mapping=parquet_path_to_id_mapping(metadata.schema()),
        )
        return IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{metadata.location}/{file.name}",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            file_size_in_bytes=file.bytes,
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


class _Aside(PyArrowFileIO):
    """Files of a table by the names that they will have, where they are now."""

    def __init__(self, location: str, root: str) -> None:
        super().__init__()
        self._location = location
        self._root = root
        os.makedirs(os.path.join(root, "metadata"), exist_ok=True)

    def new_input(self, location: str) -> PyArrowFile:
        return self._at(location)

    def new_output(self, location: str) -> PyArrowFile:
        return self._at(location)

    def _at(self, location: str) -> PyArrowFile:
        path = self._root + location.removeprefix(self._location)
        return PyArrowFile(location=location, path=path, fs=LocalFileSystem())


def _leaf(kind: pa.DataType) -> pa.DataType:
    if kind == UUID:
        return pa.uuid()
    return pa.int32() if kind in {pa.int8(), pa.int16()} else kind


def _with_ids(schema: pa.Schema) -> pa.Schema:
    """Columns with numbers, without which pyiceberg does not take them; it then gives its own."""
    numbers = itertools.count(1)
    return pa.schema([_numbered(field, numbers) for field in schema])


def _numbered(field: pa.Field, numbers: Iterator[int]) -> pa.Field:
    metadata, kind = {_ID: str(next(numbers))}, field.type
    if pa.types.is_list(kind):
        kind = pa.list_(_numbered(kind.value_field, numbers))
    elif pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        kind = pa.map_(_numbered(key, numbers), _numbered(item, numbers))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_numbered(one, numbers) for one in kind.fields])
    return pa.field(field.name, kind, nullable=field.nullable, metadata=metadata)
