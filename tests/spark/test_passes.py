"""Executors without a token, on real Spark: their tasks show passes, and nothing shows these."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lowmark
from eventually import eventually
from lowmark.spark.archive import SWITCH
from lowmark.tokens import PASS_PREFIX
from server.nodes import Nodes
from spark.jobs import TESTS
from spark.passing import ROWS
from spark.standalone import standalone

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("spark")]


class Guarded(Nodes):
    """It asks for tokens."""

    def options(self, *, join: bool) -> list[str]:
        return ["--tokens"]


# `server/test_passes` has tasks without Spark that read, stage and compact with a pass alone;
# `backend/test_keeper` renews passes beside a process that plans.
@pytest.mark.release
def test_tasks_without_a_token_have_passes_that_nothing_shows(tmp_path: Path) -> None:
    # given a node that asks for tokens, executors that have none, and a driver that has one
    for name in ("nodes", "cluster", "driver", "kept"):
        (tmp_path / name).mkdir()
    folder, kept = tmp_path / "driver", tmp_path / "kept"
    with (
        Guarded(tmp_path / "nodes", 1, LOWMARK_LEDGER_LOCATION=str(tmp_path / "ledgers")) as nodes,
        standalone(tmp_path / "cluster", workers=2) as cluster,
    ):
        admin = (tmp_path / "nodes" / "n0" / "admin.token").read_text().strip()
        with lowmark.connect(nodes.address(0), token=admin) as db:
            token = db.tokens.create("driver").token
        file = folder / "token"
        file.touch(mode=0o600)
        file.write_text(token)
        words = [cluster.master, str(folder), nodes.address(0)]
        with (folder / "stderr").open("wb") as log:
            done = subprocess.run(
                [sys.executable, "-m", "spark.passing", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ
                | {"PYTHONPATH": str(TESTS), "LOWMARK_TOKEN_FILE": str(file), SWITCH: "off"}
                | {"TMPDIR": str(kept)},
                timeout=600,
                check=False,
            )
        assert done.returncode == 0, (folder / "stderr").read_text()
        answer = json.loads(done.stdout)
        # then all of it was done
        assert answer["written"] == answer["read"] == answer["collected"] == ROWS
        assert answer["streamed"] == answer["compacted"] == ROWS
        # and a task whose pass has ended says so
        assert "the pass has ended" in answer["error"]
        # and when the application has ended, its passes have, too
        with lowmark.connect(nodes.address(0), token=admin) as db:
            eventually(lambda: not db.backend.range(b"access.pass."), deadline_s=60)
            eventually(lambda: not [*kept.glob("lowmark-passes-*/*")], deadline_s=60)
        file.unlink()
        # then neither a token nor a pass is in what Spark, its logs or the system show
        shown = dict(texts(tmp_path))
        names = {path.name for path in shown}
        assert any("orders" in text for path, text in shown.items() if "events" in path.parts)
        assert {"n0.stderr", "stderr", "stdout"} <= names
        assert "orders" in "".join(text for path, text in shown.items() if "page-" in path.name)
        said = "".join(text for path, text in shown.items() if "cmdline" in path.name)
        assert "org.apache.spark.executor.CoarseGrainedExecutorBackend" in said
        assert "lowmark.backend.keeper" in said
        for path, text in shown.items():
            for secret in (*encoded(token), *encoded(admin), *encoded(PASS_PREFIX)):
                assert secret not in text, path
        assert token not in done.stdout.decode()


def texts(folder: Path) -> Iterator[tuple[Path, str]]:
    """All that was written there but for the nodes' data, and the blocks that Spark moves."""
    for path in folder.rglob("*"):
        inside = path.relative_to(folder).parts
        if path.is_file() and "n0" not in inside and not any("blockmgr" in one for one in inside):
            yield path, path.read_bytes().decode("latin-1")


def encoded(secret: str) -> Iterator[str]:
    """A secret, or how one begins, as it is and in ways in which bytes are shown."""
    yield secret
    yield secret.encode().hex()
    for before in range(3):  # what stands before it shifts the digits of base 64
        text = base64.b64encode(b"\0" * before + secret.encode()).decode()
        yield text[-(-before * 8 // 6) : (before + len(secret)) * 8 // 6]
