"""What the README and the guide show is run, and what they list is compared with the code."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
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


README = (ROOT / "README.md").read_text()


def _run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


def _run_example(folder: Path) -> tuple[str, subprocess.CompletedProcess[str]]:
    """The Python that the README shows, run in a folder."""
    [example] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    return example, _run([sys.executable, "-c", example], folder)


def test_the_readme_s_example_runs_as_it_stands(tmp_path: Path) -> None:
    # when the example is run in an empty folder
    example, ran = _run_example(tmp_path)
    # then it prints what it says it prints, line for line
    assert ran.returncode == 0, ran.stderr
    said = re.findall(r"^ *print\(.*\)  # (.*)$", example, re.MULTILINE)
    assert len(said) == example.count("print(") >= 6
    assert ran.stdout.splitlines() == said
    # and it has shown what the product is about
    for word in ("open", "append", "follow=True", "as_of=", "delete", "compact(", "explain"):
        assert word in example


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_readme_s_commands_work_on_the_example_s_directory(tmp_path: Path) -> None:
    # given the directory that the example leaves
    assert _run_example(tmp_path)[1].returncode == 0
    # when the commands on it are run as they stand there
    [shell] = re.findall(r"## From a shell\n\n```sh\n(.*?)```", README, re.DOTALL)
    commands = re.findall(r"^\.venv/bin/lowmark (.*?) +#", shell, re.MULTILINE)
    assert len(commands) == len(shell.splitlines()) == 11
    for command in commands:
        ran = _run([sys.executable, "-m", "lowmark", *shlex.split(command)], tmp_path)
        # then each says something and is content
        assert ran.returncode == 0, f"{command}: {ran.stdout}{ran.stderr}"
        assert ran.stdout.strip()


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


def _quickstart(folder: Path, *options: str) -> str:
    """The quickstart with few rows; it leaves nothing but its picture."""
    words = [sys.executable, str(ROOT / "examples" / "quickstart.py"), "--rows", "20000", *options]
    ran = _run(words, folder)
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


def test_the_quickstart_comes_to_its_end_without_spark(tmp_path: Path) -> None:
    said = _quickstart(tmp_path, "--no-spark")
    _check_quickstart(said)
    assert "Start Spark" not in said


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_the_quickstart_comes_to_its_end_on_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOWMARK_SPARK_ARCHIVE", "off")  # nothing is left in the user's cache
    said = _quickstart(tmp_path)
    _check_quickstart(said)
    assert re.search(r"Start Spark on this machine.*\n  It took [\d.]+ seconds", said)


def test_what_the_readme_shows_of_the_quickstart_is_what_it_prints() -> None:
    """Not the numbers, which take three million rows; but every sentence, and every way to read."""
    [shown] = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    source = (ROOT / "examples" / "quickstart.py").read_text()
    assert "ROWS = 3_000_000" in source
    for line in shown.splitlines():
        for words in re.findall(r"[A-Za-z](?:[A-Za-z']| (?! )){11,}[a-z]", line):
            assert words in source, words
    # and what can't be otherwise is so: all agree
    for moment in ("now", "noon"):
        states = re.findall(rf"^ {moment} .*?([\d,]+ +[\d,]+ +[\d,]+\.\d\d)$", shown, re.MULTILINE)
        assert len(set(states)) == 1


def test_every_example_is_named_where_people_look_and_leaves_nothing_in_git() -> None:
    names = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert names == {"quickstart.py", "quickstart_shop.py", "table_tour.py", "log_tour.py"}
    # run by the tests above, but for the part that the quickstart imports
    tests = Path(__file__).read_text()
    assert all(f'"{name}"' in tests for name in names)
    assert "/tide.png" in (ROOT / ".gitignore").read_text().splitlines()


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
