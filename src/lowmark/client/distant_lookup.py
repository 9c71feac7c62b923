"""The latest row of a key, of a database at a distance: looked up there, where the index is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lowmark.backend.port import LooksUp
from lowmark.backend.protocol import KEYS_MAX
from lowmark.backend.values import Found
from lowmark.client.lookup import Lookup


class DistantLookup(Lookup):
    """See `Lookup`; it keeps no index and no rows."""

    def get(self, values: Sequence[object]) -> dict[str, Any] | None:
        """See `Lookup`."""
        found = self.find(values)
        return None if found is None else found.row

    def find_key(self, key: int | bytes) -> Found | None:
        """See `Lookup`."""
        (found,) = self._asked((key,))
        return found

    def get_many(self, wanted: pa.RecordBatch) -> list[dict[str, Any] | None]:
        """See `Lookup`."""
        keys = self._form.array(wanted).to_pylist()
        return [
            None if one is None else one.row
            for at in range(0, len(keys), KEYS_MAX)
            for one in self._asked(keys[at : at + KEYS_MAX])
        ]

    def _asked(self, keys: Sequence[int | bytes]) -> Sequence[Found | None]:
        assert isinstance(self.backend, LooksUp)
        return self.backend.look_up(self.table.id, keys)
