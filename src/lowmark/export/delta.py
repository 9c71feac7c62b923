"""A Delta table of files that are there: one commit, which names them.

Delta names files from the directory of the table on, so the directory may be renamed, moved and
copied. Statistics of a file are its rows alone: keys are spread over files by their hash, so
smallest and largest values would let a reader pass over nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

import pyarrow as pa
from deltalake import CommitProperties, Schema
from deltalake.transaction import AddAction, create_table_with_add_actions

from lowmark.export.columns import UUID, columns_in, names_in
from lowmark.export.errors import ColumnUnfit
from lowmark.export.files import DataFile

_NOT_IN_NAMES = frozenset(" ,;{}()\n\t=")
"""What names of columns can't have, unless a table maps them to others."""


class DeltaTarget:
    """See `Target`."""

    folder = ""

    def __init__(self, schema: pa.Schema, *, name: str, notes: Mapping[str, str]) -> None:
        for column, part in names_in(schema):
            bad = sorted(set(part) & _NOT_IN_NAMES)
            if bad:
                raise ColumnUnfit(
                    column,
                    why=f"names of a Delta table can't have {bad[0]!r}, as {part!r} has",
                    hint="Leave it out, or rename it by `lowmark table alter`.",
                )
        self.schema = columns_in(schema, _leaf, format_name="Delta")
        self._name = name
        self._notes = dict(notes)

    def commit(self, root: str, files: Sequence[DataFile]) -> Sequence[DataFile]:
        """See `Target`."""
        create_table_with_add_actions(
            root,
            Schema.from_arrow(self.schema),
            [_action(root, file) for file in files],
            name=self._name,
            commit_properties=CommitProperties(custom_metadata=self._notes),
        )
        return files


def _leaf(kind: pa.DataType) -> pa.DataType:
    return pa.binary() if kind == UUID else kind


def _action(root: str, file: DataFile) -> AddAction:
    modified_ms = os.stat(os.path.join(root, file.name)).st_mtime_ns // 1_000_000
    stats = json.dumps({"numRecords": file.rows})
    return AddAction(file.name, file.bytes, {}, modified_ms, data_change=True, stats=stats)
