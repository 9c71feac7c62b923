"""What must be installed: Spark and a Java to run it, found without importing or starting them.

Spark's own scripts look for Java in the same places and in the same order. An old Java would print
a stack trace that says nothing of its age; so it is asked for its version first. That stands in a
file beside it, mostly, and costs nothing to read.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lowmark.errors import LowmarkError
from lowmark.spark.errors import JAVA_NEEDED, JavaMissing, JavaTooOld, SessionRefused, SparkMissing

_ANSWERS_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that is new enough."""

    program: Path  # where it really is, links followed
    version: str  # like 17.0.15


def find_java() -> Java:
    """The Java that Spark would use; an error with what to do if it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(f"{home}/bin/java" if home else "java")
    if found is None:
        where = f"{home}/bin/java, as JAVA_HOME says" if home else "java on the PATH"
        raise JavaMissing(where)
    program = Path(found).resolve()
    version = _written_version(program) or _told_version(program)
    if _major(version) < JAVA_NEEDED:
        raise JavaTooOld(program=str(program), version=version)
    return Java(program=program, version=version)


def _written_version(program: Path) -> str | None:
    try:
        text = (program.parent.parent / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    return found.group(1) if found else None


def _told_version(program: Path) -> str:
    try:
        done = subprocess.run(
            [str(program), "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_ANSWERS_WITHIN_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaMissing(f"{program}, and it does not run: {error}") from error
    text = (done.stderr + done.stdout).decode(errors="replace")
    found = re.search(r'version "([^"]+)"', text)
    if found is None:
        raise JavaMissing(f"{program}, and it does not say its version: {text.strip()[:200]}")
    return found.group(1)


def _major(version: str) -> int:
    # 1.8.0_392 is Java 8; 17.0.15, 21-ea and 25 are what they say.
    found = re.match(r"(?:1\.)?(\d+)", version)
    return int(found.group(1)) if found else 0


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
            hint="Unset SPARK_HOME, and install Spark with `pip install 'pyspark>=4.2'`.",
        )
    return home


def why_not() -> str:
    """What is missing, in a few words; empty if PySpark and a Java that is new enough are there."""
    try:
        spark_home()
        find_java()
    except LowmarkError as missing:
        return missing.message
    return ""
