"""Nodes by `lowmark serve`, each a process, that may be started anew at other addresses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

ENVIRONMENT = {
    "LOWMARK_GROUP_TICK_MS": "30",
    "LOWMARK_GROUP_REQUEST_TIMEOUT_MS": "60000",
    "LOWMARK_METASTORE_LEASE_MS": "1500",
}


class ServedNodes:
    """By name, with their directories in one folder; they end with the `with`."""

    def __init__(
        self, folder: Path, *, inside: Callable[[Sequence[str]], Sequence[str]] = lambda one: one
    ) -> None:
        """`inside`: gives the command that runs another one in a network of its own."""
        self.folder = folder
        self._inside = inside
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._processes):
            self.stop(name, signal.SIGKILL)

    def begin(self, name: str, *words: str) -> None:
        """Start one, and do not wait for it."""
        given = ["serve", "--data", str(self.folder / name), "--name", name, "--json", *words]
        with self.said(name).open("ab") as stderr:
            self._processes[name] = subprocess.Popen(
                self._inside([sys.executable, "-m", "lowmark", *given]),
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=os.environ | ENVIRONMENT,
            )

    def ready(self, name: str) -> dict[str, Any]:
        """What it says when it is ready."""
        stdout = self._processes[name].stdout
        assert stdout is not None
        line = stdout.readline()
        assert line, self.said(name).read_text()
        facts: dict[str, Any] = json.loads(line)
        return facts

    def start(self, name: str, *words: str) -> dict[str, Any]:
        """Start one; gives what it says."""
        self.begin(name, *words)
        return self.ready(name)

    def said(self, name: str) -> Path:
        """What it said on stderr, at all its starts."""
        return self.folder / f"{name}.stderr"

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        process = self._processes.pop(name)
        process.send_signal(number)
        process.communicate()
