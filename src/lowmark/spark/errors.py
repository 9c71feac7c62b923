"""What can be wrong with Spark, sorted as all errors are: by what the caller does next."""

from __future__ import annotations

from lowmark.errors import Rejected, Unavailable

JAVA_NEEDED = 17


class SparkMissing(Rejected):
    """PySpark is not installed."""

    def __init__(self, why: str) -> None:
        super().__init__(
            "PySpark can't be imported",
            detail=f"{why}.",
            hint="Install it: `pip install 'pyspark>=4.2'`; Java 17 or newer is needed, too. Or"
            " compact without Spark: `--engine local`, in Python `engine='local'`.",
        )


class JavaMissing(Rejected):
    """There is no Java to run Spark with."""

    def __init__(self, where: str) -> None:
        super().__init__(
            "Spark needs Java, and there is none",
            detail=f"Looked for {where}.",
            hint=f"Install Java {JAVA_NEEDED} or newer, or set JAVA_HOME to where it is. Or compact"
            " without Spark: `--engine local`, in Python `engine='local'`.",
        )


class JavaTooOld(Rejected):
    """The Java that is there is older than Spark can use."""

    def __init__(self, *, program: str, version: str) -> None:
        super().__init__(
            f"Spark needs Java {JAVA_NEEDED} or newer, and {program} is version {version}",
            hint=f"Set JAVA_HOME to a Java {JAVA_NEEDED} or newer.",
        )


class SessionRefused(Rejected):
    """This session can't be opened, or not be used, as it was asked for."""


class SparkNotStarted(Unavailable):
    """Spark ended, or gave up, before it was ready."""


class MasterNotReached(Unavailable):
    """No process answers where the master should be."""

    def __init__(self, master: str, *, why: str) -> None:
        super().__init__(
            f"the Spark master {master} can't be reached",
            detail=f"{why}.",
            hint="See whether it runs, and whether its host and port are right.",
        )


class NoExecutors(Unavailable):
    """The master is there, and gives us no executor."""

    def __init__(self, master: str, *, waited_s: float) -> None:
        super().__init__(
            f"the Spark master {master} gave no executor within {waited_s:.0f} seconds",
            hint="See whether it has workers, whether they have cores and memory free"
            " (spark.executor.memory, spark.cores.max), and whether they can connect back to this"
            " process (spark.driver.host).",
        )


class SparkGone(Unavailable):
    """The session was stopped, or its process is gone, while something ran in it."""

    def __init__(self, why: str = "") -> None:
        super().__init__(
            "the Spark session is gone", detail=why, hint="Open a new one, and begin again."
        )


class WorkersUnfit(Rejected):
    """Where tasks run, Python or Lowmark is not what it is here."""


class TaskFailed(Unavailable):
    """The work raised something that is not an error of Lowmark's; `detail` has its traceback."""


class TaskLost(Unavailable):
    """A task's process died, and so did those of its further attempts."""
