"""Lowmark: a replicated, versioned table log for Python and Spark."""

__all__ = ["__version__"]

__version__ = "0.1.0"
