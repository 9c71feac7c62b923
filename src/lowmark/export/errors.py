"""Why an export can't be made as it was asked for."""

from __future__ import annotations

from lowmark.errors import Rejected


class DestinationRefused(Rejected):
    """A directory that an export can't be written to."""


class ColumnUnfit(Rejected):
    """A column that a format can't have, by its name or its type."""

    def __init__(self, column: str, *, why: str, hint: str) -> None:
        super().__init__(f"column {column} can't be exported: {why}", hint=hint)
        self.column = column
