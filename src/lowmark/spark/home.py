"""Where Spark is installed, found without importing any of it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from lowmark.spark.errors import SessionRefused, SparkMissing

__all__ = ["spark_home"]


def spark_home() -> Path:
    """The folder with Spark's scripts and jars: PySpark's own, or the one that SPARK_HOME names."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise SparkMissing("There is no such package in this Python")
    told = os.environ.get("SPARK_HOME")
    home = Path(told or spec.submodule_search_locations[0])
    if not (home / "bin" / "spark-submit").is_file() or not (home / "jars").is_dir():
        raise SessionRefused(
            f"there is no Spark in {home}",
            detail="SPARK_HOME names that folder." if told else "PySpark was installed without it.",
            hint="Unset SPARK_HOME, and install Spark with `pip install 'pyspark>=4.1'`.",
        )
    return home
