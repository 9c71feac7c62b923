"""What makes files a table, format by format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypeAlias, get_args

import pyarrow as pa

from lowmark.backend.errors import PackageMissing
from lowmark.errors import Rejected
from lowmark.export.columns import columns_in
from lowmark.export.files import DataFile, write_empty

Format: TypeAlias = Literal["parquet", "delta", "iceberg"]


class Target(Protocol):
    """A table to be, in one format."""

    schema: pa.Schema
    """What its files have as columns."""
    folder: str
    """Where its files stand in the directory."""

    def commit(self, root: str, files: Sequence[DataFile]) -> Sequence[DataFile]:
        """Make files of a directory, named from there on, the table: all that has to be beside
        them. Gives the files of the table.
        """


class ParquetTarget:
    """Files in a directory; that is all."""

    folder = ""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = columns_in(schema, lambda kind: kind, format_name="Parquet")

    def commit(self, root: str, files: Sequence[DataFile]) -> Sequence[DataFile]:
        """See `Target`. A directory without any file would not say what the columns are."""
        return files or [write_empty(self.schema, root, "part-00000-00000.parquet")]


def check_format(wanted: str) -> Format:
    """Refuse a format that there is not."""
    for known in get_args(Format):
        if wanted == known:
            found: Format = known
            return found
    raise Rejected(f"format can't be {wanted!r}", hint="Use parquet, delta or iceberg.")


def target_for(
    wanted: Format, schema: pa.Schema, *, path: str, name: str, notes: Mapping[str, str]
) -> Target:
    """The table to be, at a path; `notes` say where its rows are from. Refused, if the format
    needs a package that is not installed.
    """
    match wanted:
        case "parquet":
            return ParquetTarget(schema)
        case "delta":
            try:
                from lowmark.export.delta import DeltaTarget  # noqa: PLC0415 (it is optional)
            except ImportError as error:
                raise _missing("deltalake", wanted, error) from error
            return DeltaTarget(schema, name=name, notes=notes)
        case "iceberg":
            try:
                from lowmark.export.iceberg import IcebergTarget  # noqa: PLC0415 (it is optional)
            except ImportError as error:
                raise _missing("pyiceberg", wanted, error) from error
            return IcebergTarget(schema, path=path, name=name, notes=notes)


def _missing(package: str, wanted: Format, error: ImportError) -> ImportError | PackageMissing:
    """The error for a package that is not there; any other failure of an import as it is."""
    if (error.name or "").partition(".")[0] != package:
        return error
    return PackageMissing(package, needed_for=f"an export to {wanted}")
