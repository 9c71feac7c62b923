"""The class-data archive: what Java learns about Spark's classes when it starts, kept for the next
time.

Reading and checking some ten thousand classes is most of what a session does until its first job.
Java can write down what came of it, and map that file into memory when it is next started. It is
good for the same Java, the same Spark in the same place, and the same options only, so its name is
made of all these. Java ignores one that does not fit.

    1. A session that finds none is told to write one when it ends, under a name of its own.
    2. When that process has ended well, the file is synced, and renamed to where sessions look.
       So there is either a whole archive or none.
    3. If it was not written, that is noted, and no session tries again.

It is a convenience: whatever fails here, a session starts without. `LOWMARK_SPARK_ARCHIVE=off`
turns it off. One archive takes some 70 MB; those of the last two combinations are kept.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lowmark.spark.errors import SparkNotStarted
from lowmark.spark.java import Java, find_java, spark_home
from lowmark.spark.settings import JAVA_OPTIONS

logger = logging.getLogger(__name__)

SWITCH = "LOWMARK_SPARK_ARCHIVE"
"""`off`: sessions neither use nor write one. `anew`: write one even if there is one."""

_KEPT = 2
_MADE_WITHIN_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """An archive that a Java process will write when it ends."""

    written: Path  # by Java
    published: Path

    def finish(self, *, ended_well: bool) -> None:
        """The process has ended: publish what it wrote, or note that it wrote nothing."""
        try:
            if ended_well and self.written.is_file():
                _sync(self.written)
                self.written.replace(self.published)
                _sync(self.published.parent)
                _sweep(self.published)
            elif ended_well:
                _failed(self.published).touch()
            self.written.unlink(missing_ok=True)
        except OSError as error:
            logger.debug("class-data archive not kept", extra={"error": str(error)})


def archive_path(home: Path | None = None, java: Java | None = None) -> Path:
    """Where the archive for this Spark and this Java is, or would be."""
    home = home or spark_home()
    found = java or find_java()
    version = _spark_version(home)
    jars = home / "jars"
    # A file that is put into the folder, or exchanged, changes the time of the folder.
    times = (str(path.stat().st_mtime_ns) for path in (jars, found.program))
    parts = [str(jars), str(found.program), *times, *JAVA_OPTIONS]
    digest = hashlib.sha256("\0".join([version, found.version, *parts]).encode()).hexdigest()[:12]
    return _cache() / f"spark-{version}-java-{found.version}-{digest}.jsa"


def archive_options(
    home: Path, java: Java, *, environment: Mapping[str, str]
) -> tuple[tuple[str, ...], Recording | None]:
    """What to start Java with: an archive to use, or one to write, or neither."""
    switch = environment.get(SWITCH, "")
    if switch == "off":
        return (), None
    try:
        path = archive_path(home, java)
        if switch != "anew":
            if _is_ours(path):
                os.utime(path)  # the sweep keeps what was used last
                return (f"-XX:SharedArchiveFile={path}", "-Xshare:auto"), None
            if _failed(path).exists():
                return (), None
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = path.with_suffix(f".{os.getpid()}.tmp")
        written.unlink(missing_ok=True)
    except OSError as error:
        logger.debug("no class-data archive", extra={"error": str(error)})
        return (), None
    recording = Recording(written=written, published=path)
    return (f"-XX:ArchiveClassesAtExit={written}",), recording


def make_archive() -> Path:
    """Write the archive now, in a process of its own that opens a session, runs a job, and ends."""
    path = archive_path()
    done = subprocess.run(
        [sys.executable, "-c", "from lowmark.spark.runner import rehearse; rehearse()"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {SWITCH: "anew"},
        check=False,
        timeout=_MADE_WITHIN_S,
    )
    if done.returncode != 0 or not _is_ours(path):
        said = done.stdout.decode(errors="replace").strip()
        raise SparkNotStarted(
            "the class-data archive was not written",
            detail=said[-2_000:] or "Java wrote none and did not say why.",
            hint="Sessions work without it; they only start more slowly.",
        )
    return path


def _is_ours(path: Path) -> bool:
    # Java runs what stands in it, so no other user may have put it there.
    try:
        found = path.stat(follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_size > 0


def _failed(path: Path) -> Path:
    return path.with_suffix(".failed")


def _sweep(newest: Path) -> None:
    archives = sorted(newest.parent.glob("*.jsa"), key=lambda path: path.stat().st_mtime_ns)
    for path in archives[:-_KEPT]:
        path.unlink(missing_ok=True)
    for path in newest.parent.glob("*.tmp"):
        # Left by a process that was killed.
        if not Path("/proc", path.suffixes[-2].removeprefix(".")).exists():
            path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base or Path.home() / ".cache", "lowmark", "spark")


def _spark_version(home: Path) -> str:
    # The name of its first jar says it, and no Python of Spark's needs to be imported.
    for jar in (home / "jars").glob("spark-core_*.jar"):
        return jar.stem.rpartition("-")[2]
    return "unknown"
