"""What the guide lists is compared with the code; the examples are run; links lead somewhere."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from lowmark.catalog.options import OPTIONS
from lowmark.client import AppendFailed, Closed, Forked, GapFound
from lowmark.group import GroupConfig, GroupStatus, OutcomeUnknown, PeerStatus
from lowmark.log import config
from lowmark.log.config import LogConfig
from lowmark.node.node import REPLAY_BYTES
from lowmark.node.settings import WatermarkSettings, load_section, load_settings
from lowmark.node.status import HELD_MS_MAX, PINNED_BYTES_MAX, WAITING_MS_MAX
from lowmark.runtime import Locked
from lowmark.table.partition import SNAPSHOT_BYTES
from lowmark.upkeep.upkeep import FREED_BYTES_MIN

ROOT = Path(__file__).parents[2]


def _run(
    words: list[str], folder: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_the_readme_links_to_what_is_there() -> None:
    guides = sorted((ROOT / "docs" / "guide").glob("*.md"))
    notes = sorted((ROOT / "docs" / "design").glob("*.md"))
    for page in (ROOT / "README.md", ROOT / "ARCHITECTURE.md", *guides, *notes):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_design_note_is_listed_and_has_its_parts() -> None:
    folder = ROOT / "docs" / "design"
    listed = re.findall(r"\]\((\d{4}-[\w-]+\.md)\) (.*)", (folder / "README.md").read_text())
    assert [name for name, _ in listed] == sorted(path.name for path in folder.glob("0*.md"))
    for name, title in listed:
        head = (folder / name).read_text().partition("\n")[0]
        assert head.startswith(f"# {name[:4]} {title.partition(':')[0]}"), name


def _quickstart(folder: Path, environment: dict[str, str] | None = None) -> str:
    """The quickstart with few rows; it leaves nothing but its picture."""
    words = [sys.executable, str(ROOT / "examples" / "quickstart.py"), "--rows", "20000"]
    ran = _run(words, folder, environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [path.name for path in folder.iterdir()] == ["tide.png"]
    assert (folder / "tide.png").read_bytes().startswith(b"\x89PNG")
    return ran.stdout


def _check_quickstart(said: str) -> None:
    assert re.search(r"18,000 changes became [\d,]+ rows in .* 2,000 are later than noon", said)
    assert "The follower saw all 20,000 changes" in said
    assert "Of order 4711, it saw: packed, then shipped." in said
    # the same state by all ways, with the model's own, now and at noon
    for moment, ways in (("now", 4), ("noon", 3)):
        states = re.findall(rf"^ {moment} .*?([\d,]+ +[\d,]+ +[\d,]+\.\d\d) *$", said, re.MULTILINE)
        assert (len(states), len(set(states))) == (ways, 1)
    assert "They agree." in said
    assert re.search(r"noon  4711  packed   86.50", said)
    assert "BelowWatermark: " in said
    assert said.count("cursor billing") == 4
    assert re.search(r"second run +[\d,]+", said)


@pytest.mark.slow
def test_the_quickstart_goes_on_without_java_and_says_what_is_missing(tmp_path: Path) -> None:
    # given a machine that has no Java, by all that a program can see
    kept = {name: text for name, text in os.environ.items() if name != "JAVA_HOME"}
    # when the tour is run as `make quickstart` runs it
    said = _quickstart(tmp_path, {**kept, "PATH": ""})
    # then it says at its beginning what is missing and what to do, and comes to its end
    head, _, rest = said.partition("Open a folder.")
    assert "as with --no-spark" in head
    assert "Spark needs Java, and there is none." in head
    assert "apt-get install openjdk-17-jre-headless" in head
    _check_quickstart(rest)
    assert "Start Spark" not in rest


@pytest.mark.slow
@pytest.mark.release  # the same without Spark is above; `tests/spark` compacts on it
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_the_quickstart_comes_to_its_end_on_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOWMARK_SPARK_ARCHIVE", "off")  # nothing is left in the user's cache
    said = _quickstart(tmp_path)
    _check_quickstart(said)
    assert re.search(r"Start Spark on this machine.*\n  It took [\d.]+ seconds", said)


def test_every_example_is_named_where_people_look_and_leaves_nothing_in_git() -> None:
    names = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert names == {"quickstart.py", "quickstart_shop.py", "table_tour.py", "log_tour.py"}
    # run by the tests above, but for the part that the quickstart imports
    tests = Path(__file__).read_text()
    assert all(f'"{name}"' in tests for name in names)
    assert "/tide.png" in (ROOT / ".gitignore").read_text().splitlines()


@pytest.mark.slow
def test_the_tour_of_tables_shows_a_table_s_life_and_what_survives_a_kill() -> None:
    # when it is run
    ran = _run([sys.executable, str(ROOT / "examples" / "table_tour.py")], ROOT)
    # then it came to its end, in both lives
    assert ran.returncode == 0, ran.stdout + ran.stderr
    first, killed, second = ran.stdout.partition("kill -9")
    assert killed
    # and what it says of the first one is so: a refusal by name, a tail, two answers for one key
    assert "ValueRefused: row 1, column amount: '9.505'" in first
    assert re.findall(r"tail: .*'status': '(\w+)'", first) == ["paid", "packed", "shipped"]
    assert re.search(r"now: .*'shipped'", first)
    assert re.search(r"before the producer: .*'new'", first)
    assert re.search(r"\('c-17',\) was deleted", first)
    assert re.search(r"\('c-99999',\) is unknown", first)
    # and nothing that was acknowledged is missing in the second
    assert "Recovered" in second
    assert "10,005 changes" in second
    assert re.search(r"the last row of o-1 is .*'shipped'", second)
    [seen] = re.findall(r"billing has seen ([\d,]+) rows, and has ([\d,]+) to go", first)
    assert sum(int(number.replace(",", "")) for number in seen) == 10_005
    assert f"billing still has {seen[1]} rows to go" in second
    # and it is told who holds what
    assert second.count("cursor billing holds partition") == 4
    assert re.search(r"held by node \S+: table orders is read as of then", second)
    assert "BelowWatermark: " in second


@pytest.mark.slow
def test_the_tour_of_the_log_shows_what_went_and_why() -> None:
    # when it is run
    ran = _run([sys.executable, str(ROOT / "examples" / "log_tour.py")], ROOT)
    # then it died and recovered
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for word in ("kill -9", "Recovered", "went", "merged", "kept", "finds nothing wrong"):
        assert word in ran.stdout


def _section(heading: str) -> str:
    """What the guide says under a heading, up to the next one of any level."""
    guide = (ROOT / "docs" / "guide" / "operate.md").read_text()
    [text] = re.findall(rf"^#+ {heading}\n(.*?)(?=^#|\Z)", guide, re.MULTILINE | re.DOTALL)
    return str(text)


def _documented_settings(heading: str = "Settings") -> dict[str, tuple[str, str]]:
    # The text of a comment in an example begins with # only behind a setting.
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| (.*?) \|$", _section(heading), re.MULTILINE)
    return {name: (default, meaning) for name, default, meaning in rows}


def _field_docs() -> dict[str, str]:
    [cls] = [n for n in ast.parse(inspect.getsource(config)).body if isinstance(n, ast.ClassDef)]
    docs = {}
    for field, doc in zip(cls.body, cls.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(doc, ast.Expr)
            docs[field.target.id] = ast.literal_eval(doc.value)
    return docs


def test_the_guide_lists_every_setting_of_the_log() -> None:
    assert list(_documented_settings()) == [field.name for field in fields(LogConfig)]


@pytest.mark.parametrize("name", [field.name for field in fields(LogConfig)])
def test_a_documented_default_is_the_default(name: str) -> None:
    # given what the guide says of a setting
    default, meaning = _documented_settings()[name]
    # when it is set to that, by its environment variable
    settings = load_settings(environment={f"LOWMARK_LOG_{name.upper()}": default})
    # then nothing changes, and its meaning is the one in the code
    assert settings.log == LogConfig()
    assert meaning == _field_docs()[name]


# -- tables -------------------------------------------------------------------------------------


def test_the_guide_lists_every_setting_of_the_low_watermark_with_its_default() -> None:
    # given what the guide says
    said = _documented_settings("Settings of the low watermark")
    assert list(said) == [field.name for field in fields(WatermarkSettings)]
    # when all of it is set to that, then nothing changes
    given = {f"LOWMARK_WATERMARK_{name.upper()}": default for name, (default, _) in said.items()}
    assert load_settings(environment=given).watermark == WatermarkSettings()


def test_what_the_guide_says_of_tables_is_so() -> None:
    kept, alone = _section("What tables keep"), _section("A directory that a process has open.*?")
    # given the options that make rows go
    options = re.findall(r"^\| `(\w+)` \|", kept, re.MULTILINE)
    assert set(options) == {name for name in OPTIONS if "retention" in name}
    # and the sizes and times that it names
    assert FREED_BYTES_MIN == SNAPSHOT_BYTES == 64 << 20
    assert "64 MiB" in kept
    assert "64 MiB" in alone
    assert (REPLAY_BYTES, PINNED_BYTES_MAX) == (1 << 20, 1 << 30)
    assert (WAITING_MS_MAX, HELD_MS_MAX) == (3_600_000, 600_000)
    # and the errors
    for error in (Locked, Closed, Forked, AppendFailed, OutcomeUnknown):
        assert f"`{error.__name__}`" in alone
    assert f"`{GapFound.__name__}`" in kept


# -- groups -------------------------------------------------------------------------------------


def test_the_guide_lists_every_setting_of_groups_with_its_default() -> None:
    # given what the guide says
    said = _documented_settings("Times and limits")
    assert list(said) == [field.name for field in fields(GroupConfig)]
    # when all of it is set to that
    given = {f"LOWMARK_GROUP_{name.upper()}": default for name, (default, _) in said.items()}
    config = load_section(
        GroupConfig, "group", arguments={}, environment=given, file={}, file_name=""
    )
    # then nothing changes
    assert config == GroupConfig()
    assert config.election_ms == 1_000


def test_what_the_guide_says_of_a_status_is_there() -> None:
    text = _section("Groups")
    known = {field.name for of in (GroupStatus, PeerStatus) for field in fields(of)}
    rows = re.findall(r"^\| (`\w+`.*?) \|", text, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named - known == {"waiting_requests_max"}
    assert {"peers", "bytes_per_s", "seconds_left", "installing_bytes"} <= known
