"""What the README and the guide show is run, and what they list is compared with the code."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from lowmark.bench import CATALOG_FIELDS, GROUP_FIELDS
from lowmark.group import GroupConfig, GroupStatus, PeerStatus
from lowmark.log import config
from lowmark.log.config import LogConfig
from lowmark.node.section import load_section
from lowmark.node.settings import load_settings

ROOT = Path(__file__).parents[2]


def test_the_readme_s_example_runs_as_it_stands(tmp_path: Path) -> None:
    # given the Python that the README shows
    [example] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    # when it is run in an empty folder
    ran = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    # then it prints what it says it prints
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["None", "b'o-1 shipped'"]


def test_the_readme_s_commands_work_on_the_example_s_directory(tmp_path: Path) -> None:
    # given the directory that the example leaves
    text = (ROOT / "README.md").read_text()
    [example] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    subprocess.run([sys.executable, "-c", example], cwd=tmp_path, check=True, capture_output=True)
    # when the commands on it are run as they stand there
    commands = re.findall(r"^\.venv/bin/lowmark (log .*?) +#", text, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        ran = subprocess.run(
            [sys.executable, "-m", "lowmark", *command.split()],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        # then each says something and is content
        assert ran.returncode == 0, f"{command}: {ran.stdout}{ran.stderr}"
        assert ran.stdout.strip()


def test_the_quickstart_shows_what_went_and_why() -> None:
    # when it is run
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "quickstart.py")],
        capture_output=True,
        text=True,
        check=False,
    )
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


def test_the_guide_lists_every_figure_of_groups_and_of_the_catalog() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", _section("Figures"), re.MULTILINE)
    assert rows == [*GROUP_FIELDS, *CATALOG_FIELDS]
