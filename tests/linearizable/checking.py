"""Builds the Go program and calls it."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent
BUILD_S = 300.0
SEARCH_S = 120.0
"""How long the search of one object may take, unless more is given."""


class Missing(Exception):
    """There is no Go, or no Porcupine: nothing can be checked."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a check came to."""

    code: int
    """0: all is well; 1: a violation; 2: something was not decided; 3: it is no history."""
    models: list[dict[str, Any]]
    error: str = ""

    def of(self, model: str) -> dict[str, Any]:
        """What was found of one model."""
        return next(one for one in self.models if one["model"] == model)

    @property
    def said(self) -> list[str]:
        return [line for one in self.models for line in one["said"]]


def build(folder: Path) -> Path:
    """The program. Go fetches Porcupine, unless it has it already."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise Missing("Go is not installed (https://go.dev/dl/): nothing was checked")
    program = folder / "linearizable"
    done = subprocess.run(
        [go, "build", "-o", str(program), "."],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    if done.returncode:
        raise Missing(f"Porcupine could not be fetched or built: {done.stderr.strip()}")
    return program


def check(program: Path, history: Path, *, search_s: float = SEARCH_S) -> Found:
    """Check the history in a folder."""
    done = subprocess.run(
        [str(program), "-json", "-timeout", f"{search_s * 1e9:.0f}ns", str(history)],
        capture_output=True,
        text=True,
        check=False,
    )
    models = json.loads(done.stdout)["models"] if done.stdout else []
    return Found(done.returncode, models, done.stderr.strip())
