"""How numbers stand in sentences."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, what: str) -> str:
    """A number of things, such as "1 row" or "2,000 rows"."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
