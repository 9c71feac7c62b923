"""Makes `format("lowmark")` known: Spark looks for modules whose names begin like this one's."""

from lowmark.frames import LowmarkSource as DefaultSource

__all__ = ["DefaultSource"]
