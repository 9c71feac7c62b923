"""An empty working directory without settings; afterwards logging is as it was."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    for name in [each for each in os.environ if each.startswith("LOWMARK_")]:
        monkeypatch.delenv(name)
    root, ours = logging.getLogger(), logging.getLogger("lowmark")
    handlers, level = root.handlers[:], ours.level
    yield tmp_path
    root.handlers[:] = handlers
    ours.setLevel(level)
