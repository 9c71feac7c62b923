"""The Java process of a session of our own: started, attached to, and ended.

PySpark would start it, too. But then it has our environment or none, it prints where we print, its
settings stand in the list of processes for every user to read, and we do not learn how it ended.

There is at most one in a process, as PySpark has it. It ends with the session, or with this
process, whose end closes its standard input; so it can't outlive us.

What it prints is sorted. Java and Spark print some lines that no setting keeps them from, and those
go no further than the debug log:

* Java says at every start that an incubating module is used, and which options it picked up.
* Workers wait in a pool for their next task, and after a minute of nothing to do Spark hangs up on
  them. Over a Unix socket a worker notices that at once, when it reports the end of the
  connection to the connection that has ended, and prints a traceback: `BrokenPipeError` in
  `pyspark/daemon.py`. Nothing was lost; it had nothing to do. Our own daemon keeps its workers from
  that, but a session may have PySpark's. The end of the session ends workers that are in the
  middle of such a traceback, so what is held when the output ends is not shown.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shlex
import shutil
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from lowmark.spark.archive import Recording
from lowmark.spark.errors import SparkNotStarted

logger = logging.getLogger(__name__)

_KEPT_LINES = 60
_TRACEBACK = "Traceback (most recent call last):"
_HUNG_UP = "BrokenPipeError: [Errno 32] Broken pipe"
_OF_DAEMON = re.compile(r"(?:pyspark|lowmark/spark)/daemon\.py\"|^ {4}")
"""A frame of PySpark's daemon or of ours, or the line of code that Python shows below a frame."""
_OF_JAVA = re.compile(r"WARNING: |Picked up \w+: ")


class Sorter:
    """Says of every line whether it is worth showing; a traceback is held until its end is seen."""

    def __init__(self) -> None:
        self._held: list[str] = []
        self._open = 0  # workers print at the same time, so tracebacks may be interleaved

    def take(self, line: str) -> list[str]:
        """The lines that are worth showing, now that this one was read."""
        if line == _TRACEBACK:
            self._open += 1
            self._held.append(line)
            return []
        if self._open:
            if line == _HUNG_UP and all(_is_daemons(held) for held in self._held):
                self._open -= 1
                if not self._open:
                    self._held.clear()
                return []
            self._held.append(line)
            if _is_daemons(line):
                return []
            held, self._held, self._open = self._held, [], 0
            return held
        return [] if _OF_JAVA.match(line) or not line.strip() else [line]


def _is_daemons(line: str) -> bool:
    return line == _TRACEBACK or _OF_DAEMON.search(line) is not None


class Output:
    """Reads what a process prints until it ends, on a thread of its own."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._last: deque[str] = deque(maxlen=_KEPT_LINES)
        self._thread = threading.Thread(target=self._read, name="spark output", daemon=True)
        self._thread.start()

    def last(self) -> str:
        """The last lines that were worth showing."""
        return "\n".join(self._last)

    def join(self, seconds: float) -> None:
        """Wait until the process has said its last."""
        self._thread.join(seconds)

    def _read(self) -> None:
        sorter = Sorter()
        with self._stream:
            for data in self._stream:
                line = data.decode(errors="replace").rstrip()
                logger.debug("spark said", extra={"line": line})
                self._show(sorter.take(line))

    def _show(self, lines: list[str]) -> None:
        for line in lines:
            self._last.append(line)
            logger.warning("spark: %s", line)


_READY_WITHIN_S = 120.0
_ENDS_WITHIN_S = 60.0
_WRITES_WITHIN_S = 170.0  # an archive: seconds of work, which a busy machine takes its time for
_LOOKS_EVERY_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Jvm:
    """A Java process that we have started."""

    process: subprocess.Popen[bytes]
    output: Output
    scratch: Path
    recording: Recording | None

    def end(self) -> None:
        """End it, if it still runs, and take away what it leaves behind."""
        atexit.unregister(self.end)
        if self.process.stdin is not None:
            self.process.stdin.close()  # which it takes as its sign to exit
        try:
            self.process.wait(_ENDS_WITHIN_S if self.recording is None else _WRITES_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.output.join(1.0)
        if self.recording is not None:
            self.recording.finish(ended_well=self.process.returncode == 0)
        shutil.rmtree(self.scratch, ignore_errors=True)


def start_jvm(
    home: Path,
    settings: Mapping[str, str],
    *,
    environment: Mapping[str, str],
    scratch: Path,
    recording: Recording | None,
) -> Jvm:
    """Start the process; it is not ready yet."""
    properties = scratch / "session.properties"
    # Not as arguments, which every user of the machine can read. The folder is ours alone.
    lines = (f"{_escaped(key)}={_escaped(text)}\n" for key, text in settings.items())
    properties.write_text("".join(lines), encoding="utf-8")
    submit = environment.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    process = subprocess.Popen(
        [
            str(home / "bin" / "spark-submit"),
            "--properties-file",
            str(properties),
            "--load-spark-defaults",
            *shlex.split(submit),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={
            **environment,
            "SPARK_HOME": str(home),
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(_address_file(scratch)),
        },
        # Ctrl-C is for us: we decide whether a run ends, and how.
        process_group=0,
    )
    assert process.stdout is not None
    jvm = Jvm(process=process, output=Output(process.stdout), scratch=scratch, recording=recording)
    atexit.register(jvm.end)
    return jvm


def attach(jvm: Jvm) -> Any:
    """Wait until the process is ready; gives PySpark's connection to it."""
    address = _address_file(jvm.scratch)
    ends_at = time.monotonic() + _READY_WITHIN_S
    while not address.exists():
        if jvm.process.poll() is not None or time.monotonic() > ends_at:
            jvm.process.kill()
            jvm.end()
            raise SparkNotStarted(
                "the Java process of Spark ended before it was ready"
                if jvm.process.returncode >= 0
                else f"the Java process of Spark was not ready within {_READY_WITHIN_S:.0f} s",
                detail=jvm.output.last(),
                hint="`spark-submit --version` should work on this machine; see what it says.",
            )
        time.sleep(_LOOKS_EVERY_S)
    data = address.read_bytes()
    address.unlink()
    port = int.from_bytes(data[:4], "big")
    secret = data[8 : 8 + int.from_bytes(data[4:8], "big")].decode()
    return _connect(port, secret, jvm.process)


def _connect(port: int, secret: str, process: subprocess.Popen[bytes]) -> Any:
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    # This is how PySpark learns of a process that runs already. Its lock keeps others from
    # starting one of theirs meanwhile.
    told = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    with SparkContext._lock:
        os.environ.update(told)
        try:
            gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            for name in told:
                del os.environ[name]
    gateway.proc = process
    return gateway


def _address_file(scratch: Path) -> Path:
    return scratch / "address"


def _escaped(text: str) -> str:
    # The format is Java's: a backslash escapes, and a line ends a value.
    for plain, escaped in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("=", "\\=")):
        text = text.replace(plain, escaped)
    return text.replace(" ", "\\ ").replace(":", "\\:").replace("#", "\\#").replace("!", "\\!")
