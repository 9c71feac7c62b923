"""Sessions of our own from their beginning to their end, in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lowmark.spark.archive import SWITCH
from spark.jobs import TESTS
from spark.processes import is_alive

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(300),
]

LIFE = """
import json, os, signal, sys
from pathlib import Path
from lowmark.errors import LowmarkError
from lowmark.spark import SparkRunner, make_archive, open_session
from spark.jobs import ON_WORKERS, shout

def name_of_error(call):
    try:
        call()
    except LowmarkError as error:
        return type(error).__name__

def java():
    return runner._session.sparkContext._gateway.proc.pid

facts = {"archive": str(make_archive())} if sys.argv[1] == "archive" else {}

runner = SparkRunner(open_session("local[2]", config=ON_WORKERS), owns=True)
runner.run(shout, [[b"a"], [b"b"]], label="first")
facts["maps"] = Path(f"/proc/{java()}/maps").read_text()
facts["second at once"] = name_of_error(open_session)
facts["java"] = [java()]
os.kill(java(), signal.SIGKILL)
os.waitid(os.P_PID, java(), os.WEXITED | os.WNOWAIT)
facts["run without java"] = name_of_error(lambda: runner.run(shout, [[b"a"]], label="lost"))

runner = SparkRunner(open_session("local[2]", config=ON_WORKERS), owns=True)
facts["run again"] = runner.run(shout, [[b"a"]], label="again")[0].decode()
facts["java"].append(java())
runner.close()
facts["run when closed"] = name_of_error(lambda: runner.run(shout, [[b"a"]], label="late"))
facts["left"] = os.listdir(os.environ["TMPDIR"])
print(json.dumps(facts))
"""


# The session that tests share is such a one; what is refused is in `test_runner`.
@pytest.mark.release
@pytest.mark.parametrize("archive", ["", "archive"])
def test_a_session_lives_and_leaves_nothing_behind(tmp_path: Path, archive: str) -> None:
    # given an empty cache, and a folder for all that is temporary
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = os.environ | {
        "PYTHONPATH": str(TESTS),
        "TMPDIR": str(temporary),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    environment.pop(SWITCH, None)
    if not archive:
        environment[SWITCH] = "off"
    # when sessions are opened, lost and closed
    done = subprocess.run(
        [sys.executable, "-c", LIFE, archive],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    facts = json.loads(done.stdout)
    # then the archive was made once, and is used; or there is none
    if archive:
        assert Path(facts["archive"]).is_relative_to(tmp_path / "cache")
        assert facts["archive"] in facts["maps"]
        assert os.listdir(Path(facts["archive"]).parent) == [Path(facts["archive"]).name]
    else:
        assert not (tmp_path / "cache").exists()
    # and what can't be done has a name
    assert facts["second at once"] == "SessionRefused"
    assert facts["run without java"] == "SparkGone"
    assert facts["run when closed"] == "SparkGone"
    # and a new session works where one was lost
    assert facts["run again"] == "A"
    # and nothing is said, nothing is left on the disk, and nobody runs
    assert done.stderr.decode() == ""
    assert facts["left"] == []
    assert not any(is_alive(pid) for pid in facts["java"])
