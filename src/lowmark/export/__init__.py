"""Rows of a table into a directory that other programs read: Parquet, Delta Lake, Apache Iceberg.

    columns      what each column becomes in a format; what can't be there is refused by name
    files        Parquet files, written in batches, each of a bounded size
    destination  the directory: written aside, published last
    formats      what makes files a table: nothing for Parquet, one commit for `delta` and `iceberg`

What always holds
    1. The directory is there as a whole or not at all: everything is written into a hidden one
       beside it, synced, and renamed. What a killed process has left there, the next export to the
       same directory removes.
    2. A directory that is not empty is refused. Nothing that was there before is changed.
    3. Values are the table's: a column becomes the type of the format that holds all its values, or
       the export is refused before it begins, with column and type.
    4. Memory does not grow with the table: a row group at a time is gathered, and what is known of
       a file is its name, its size and its rows.
    5. Tasks write under names of their own, and what they answer is taken: one that ran twice has
       its rows there once.

This package knows neither tables nor databases: it is given batches (`lowmark.client.exporting`).
"""

from typing import TYPE_CHECKING

from lowmark.faces import face

if TYPE_CHECKING:
    from lowmark.export.destination import Stage, destination_of, not_shared, staged
    from lowmark.export.errors import ColumnUnfit, DestinationRefused
    from lowmark.export.files import FILE_BYTES, DataFile, write_files
    from lowmark.export.formats import Format, Target, check_format, target_for

__all__ = [
    "FILE_BYTES",
    "ColumnUnfit",
    "DataFile",
    "DestinationRefused",
    "Format",
    "Stage",
    "Target",
    "check_format",
    "destination_of",
    "not_shared",
    "staged",
    "target_for",
    "write_files",
]

__getattr__, __dir__ = face(__name__)
