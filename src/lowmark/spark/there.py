"""Whether Spark could be used here, asked without starting or importing any of it."""

from __future__ import annotations

from lowmark.errors import LowmarkError
from lowmark.spark.home import spark_home
from lowmark.spark.java import find_java

__all__ = ["why_not"]


def why_not() -> str:
    """What is missing, in a few words; empty if PySpark and a Java that is new enough are there."""
    try:
        spark_home()
        find_java()
    except LowmarkError as missing:
        return missing.message
    return ""
