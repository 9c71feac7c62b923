"""Drivers of their own: a process has one Spark session at a time, and tests share one already.

python -m spark.drivers MASTER FOLDER
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from lowmark.spark import SparkRunner, open_session
from lowmark.spark.archive import SWITCH
from spark.jobs import ON_WORKERS, TESTS, wait_for_go

SMALL = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class Driver:
    """A process that runs two packs of waiting work on a cluster."""

    def __init__(self, master: str, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "driver.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "spark.drivers", master, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"PYTHONPATH": str(TESTS), SWITCH: "off"},
            )

    def begun(self) -> list[int]:
        """The Python processes that have begun a piece."""
        assert self.process.poll() is None, self._log.read_text()
        return [int(path.name.split(".")[1]) for path in self._folder.glob("*.begun")]

    def go(self) -> None:
        """Let the pieces end."""
        (self._folder / "go").touch()

    def answer(self) -> tuple[dict[str, object], str]:
        """What it answered, and what it said besides."""
        out, _ = self.process.communicate(timeout=240)
        assert self.process.returncode == 0, self._log.read_text()
        answer: dict[str, object] = json.loads(out)
        return answer, self._log.read_text()

    def kill(self) -> None:
        """End it, if it still runs."""
        self.process.kill()
        self.process.communicate()


def _drive(master: str, folder: str) -> None:
    runner = SparkRunner(open_session(master, config={**ON_WORKERS, **SMALL}), owns=True)
    try:
        slots = runner.slots
        packs = [[f"{folder}/{name}".encode() for name in pack] for pack in (("a", "b"), ("c",))]
        pieces = runner.run(wait_for_go, packs, label="waiting")
    finally:
        runner.close()
    answer = {"slots": slots, "pieces": [piece.decode() for piece in pieces]}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    _drive(*sys.argv[1:])
