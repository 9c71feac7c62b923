"""The catalog as of a time that a caller wants to read rows of."""

from __future__ import annotations

from lowmark.backend.port import Backend
from lowmark.catalog import Catalog
from lowmark.catalog.errors import VersionCompacted
from lowmark.table import BelowWatermark


def catalog_then(backend: Backend, time: int) -> Catalog:
    """As it was at a time. The catalog is cut no further than the low watermark: of a time before
    both, the caller is told of the watermark, since that is what bounds reads of rows.
    """
    try:
        return backend.catalog_at(time)
    except VersionCompacted as gone:
        watermark = backend.watermark(latest=True).value
        if time >= watermark:
            raise
        raise BelowWatermark(time=time, watermark=watermark) from gone
