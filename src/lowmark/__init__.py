"""Lowmark: a replicated, versioned table log for Python and Spark."""

from __future__ import annotations

from lowmark.version import __version__

# mypy takes this name for true; `typing` is one of the imports that would come with every start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from lowmark import errors as errors
    from lowmark.access import connect as connect
    from lowmark.access import open_database as open  # noqa: A004
    from lowmark.errors import Conflict, Corrupt, LowmarkError, Rejected, Unavailable

__all__ = [
    "Conflict",
    "Corrupt",
    "LowmarkError",
    "Rejected",
    "Unavailable",
    "__version__",
    "connect",
    "errors",
    "open",
]

_FOUND_IN = {
    "Conflict": ("lowmark.errors", "Conflict"),
    "Corrupt": ("lowmark.errors", "Corrupt"),
    "LowmarkError": ("lowmark.errors", "LowmarkError"),
    "Rejected": ("lowmark.errors", "Rejected"),
    "Unavailable": ("lowmark.errors", "Unavailable"),
    "connect": ("lowmark.access", "connect"),
    "errors": ("lowmark.errors", ""),
    "open": ("lowmark.access", "open_database"),
}
"""Where a name comes from when it is first used: `import lowmark` imports nothing else, so that the
command can take care of Ctrl-C before a second of imports, and does without them where it can.
"""


def __getattr__(name: str) -> object:
    if name not in _FOUND_IN:
        raise AttributeError(f"module 'lowmark' has no attribute {name!r}")
    import importlib  # noqa: PLC0415

    module, attribute = _FOUND_IN[name]
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
