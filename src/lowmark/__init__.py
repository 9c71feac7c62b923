"""Lowmark: a replicated, versioned table log for Python and Spark."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lowmark.errors import Conflict, Corrupt, LowmarkError, Rejected, Unavailable

if TYPE_CHECKING:
    from lowmark.client import open_database as open  # noqa: A004

__all__ = [
    "Conflict",
    "Corrupt",
    "LowmarkError",
    "Rejected",
    "Unavailable",
    "__version__",
    "open",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Later, not with `import lowmark`: most of what is here does without pyarrow and the client.
    if name == "open":
        return importlib.import_module("lowmark.client").open_database
    raise AttributeError(f"module 'lowmark' has no attribute {name!r}")
