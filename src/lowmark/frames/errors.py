"""What Spark users can get wrong, and what they get then."""

from __future__ import annotations

from lowmark.errors import Rejected


class OptionRefused(Rejected):
    """An option of a read or a stream that can't be used."""


class SchemaRefused(Rejected):
    """Columns that the table does not have, or has in another type."""
