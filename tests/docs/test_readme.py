"""The README is kept true: what it shows runs, what it names exists, what it denies is refused."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import lowmark
from eventually import eventually
from lowmark import errors
from lowmark.catalog import CreateIndex
from lowmark.cli.app import app
from lowmark.client import Database, Table
from lowmark.server import Server
from lowmark.spark import SparkRunner

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BESIDE = r"Why not Kafka, a connector and Delta\?"


def section(heading: str) -> str:
    [text] = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    return str(text)


def snippet(info: str, folder: Path) -> tuple[str, list[str]]:
    """A block of Python whose database is in a folder, and what it says that it prints."""
    [text] = re.findall(rf"^```{info}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    said = re.findall(r"^print\(.*\)  # (.*)$", text, re.MULTILINE)
    assert len(said) == text.count("print(") > 0
    # Spark's workers have a working directory of their own.
    assert '"./data"' in text
    return text.replace('"./data"', repr(str(folder / "data"))), said


def run(text: str, given: dict[str, Any]) -> None:
    exec(compile(text, "README.md", "exec"), given)  # noqa: S102


@pytest.fixture
def shop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[dict[str, Any]]:
    """What the Python of the README leaves behind, having printed what it says."""
    text, said = snippet("python", tmp_path)
    given: dict[str, Any] = {}
    run(text, given)
    assert capsys.readouterr().out.splitlines() == said
    yield given
    given["db"].close()


# -- what it is -----------------------------------------------------------------------------------


def test_it_is_short_and_says_linux_at_once() -> None:
    lines = README.splitlines()
    assert len(lines) <= 110
    assert any("Linux" in line for line in lines[:4])
    assert "Development Status :: 2 - Pre-Alpha" in (ROOT / "pyproject.toml").read_text()
    assert "**Pre-alpha:**" in README


def test_its_picture_is_what_the_script_draws_in_both_themes() -> None:
    pictures: dict[Path, str] = runpy.run_path(str(ROOT / "scripts" / "picture.py"))["pictures"]()
    assert len(pictures) == 2
    for path, text in pictures.items():
        assert path.read_text() == text, f"run scripts/picture.py: {path.name} is another"
        assert str(path.relative_to(ROOT)) in README
    assert 'media="(prefers-color-scheme: dark)" srcset="docs/pictures/overview-dark.svg"' in README


# -- what it shows --------------------------------------------------------------------------------


def commands(text: str) -> list[list[str]]:
    """Every `lowmark …` in it, by words."""
    found = re.findall(r"`lowmark ([^`]+)`|^lowmark (.+?)(?: +#.*)?$", text, re.MULTILINE)
    return [shlex.split(a or b) for a, b in found]


@pytest.mark.slow
def test_the_commands_beside_kafka_and_delta_show_what_they_are_there_for(
    shop: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given the table that the Python has left, and rows in a file
    shop["db"].close()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOWMARK_DATA", "./data")
    Path("rows.jsonl").write_text('{"id": 3, "status": "new", "cents": 7}\n')
    # and a second that has passed since the low watermark was moved
    past = ["read", "orders", "--as-of", "1 second ago"]
    eventually(lambda: CliRunner().invoke(app, past).exit_code == 0)
    # when each command is run
    said: dict[str, str] = {}
    for words in commands(section(BESIDE)):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, f"{words}: {done.output}"
        said[" ".join(words)] = done.output
    # then it shows what the line promises
    for command, shown in {
        "get orders 1": "paid",
        "read orders --as-of now": "1   paid",
        "read orders --as-of 1 second ago": "1   paid",
        "cursor create orders audit --idle-expiry 30 days": "cursor audit",
        "read orders --cursor audit --commit": "position",
        "watermark advance --to now": "Nothing held it back",
        "watermark history": "10 minutes",
        "explain orders": "billing",
        "explain orders --key 2": "deleted",
        "append orders rows.jsonl": "1 row",
        "compact orders --dry-run": "would compact 1 row",
        "runs orders": "done",
    }.items():
        assert shown in said.pop(command), command
    assert said == {}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_the_lines_of_spark_print_what_they_say_and_a_merge_is_refused(
    shop: dict[str, Any],
    tmp_path: Path,
    shared: SparkRunner,  # the session that the lines get
    capsys: pytest.CaptureFixture[str],
) -> None:
    # when the lines are run after those of Python, in one process
    text, said = snippet("python spark", tmp_path)
    run(text, shop)
    # then they print what they say
    assert capsys.readouterr().out.splitlines() == said
    # and there is no MERGE; tests/frames has overwriting (`test_sink`) and CREATE TABLE
    # (`test_reading`) refused
    spark = shop["spark"]
    shop["paid"].createOrReplaceTempView("paid")
    try:
        with pytest.raises(Exception, match="MERGE"):
            spark.sql("MERGE INTO paid USING paid AS p ON p.id = paid.id WHEN MATCHED THEN DELETE")
    finally:
        spark.catalog.dropTempView("paid")


# -- what it names --------------------------------------------------------------------------------


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that words name, and the rest of them."""
    found: Any = typer.main.get_command(app)
    while words and words[0] in getattr(found, "commands", {}):
        found, words = found.commands[words[0]], words[1:]
    return found, words


def test_every_command_and_option_that_it_names_is_there() -> None:
    # those beside Kafka and Delta are run, above
    run = commands(section(BESIDE))
    others = [words for words in commands(README) if words not in run]
    assert len(others) > 3
    for words in others:
        found, rest = command_of(words)
        assert len(rest) < len(words), words
        if hasattr(found, "commands"):
            assert rest == [], words
        else:
            found.make_context("lowmark", list(rest)).close()  # parses them, and runs nothing
    for option in re.findall(r"`(--[a-z-]+)`", README):
        assert option == "--json"


def test_every_other_name_is_there_too() -> None:
    # targets of make, and the options of the tour
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"\bmake ([a-z][a-z-]*)\b(?=`| +#)", README)
    assert {"quickstart", "test"} <= set(targets)
    assert all(f"\n{target}:" in makefile for target in targets)
    tour = (ROOT / "examples" / "quickstart.py").read_text()
    assert "ROWS = 3_000_000" in tour
    for option in re.findall(r"quickstart\.py (--[a-z-]+)", README):
        assert f'"{option}"' in tour
    # errors, and figures
    for error in re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", README):
        assert issubclass(getattr(errors, error), errors.LowmarkError)
    figures = set(re.findall(r"`(\w+_vs_\w+)`", README))
    assert figures
    sources = [path.read_text() for path in (ROOT / "benchmarks").glob("spark_*.py")]
    measured = set(re.findall(r'Figure\("(\w+)"', "".join(sources)))
    assert figures <= measured
    assert {"upsert_vs_delta", "scan_vs_parquet", "source_vs_parquet", "sink_vs_append"} <= measured


# -- what it denies -------------------------------------------------------------------------------


def has_no_rights(db: Database, orders: Table) -> None:
    [words] = [words for words in commands(section("What it can't do")) if words[0] == "serve"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "other machines can reach 0.0.0.0:6570, and the node has no TLS" in done.output
    with pytest.raises(errors.NotLoopback):
        Server(db, "0.0.0.0:0")
    serve, _ = command_of(["serve"])
    options = {option for parameter in serve.params for option in parameter.opts}
    assert not [option for option in options if "user" in option or "role" in option]
    create, _ = command_of(["token", "create"])
    assert not [one for parameter in create.params for one in parameter.opts if "role" in one]


def has_no_transactions(db: Database, orders: Table) -> None:
    for name in ("transaction", "begin"):
        for one in (db, orders):
            with pytest.raises(AttributeError, match=name):
                getattr(one, name)


def has_no_secondary_indexes(db: Database, orders: Table) -> None:
    db.create_table("empty", {"id": "int64", "status": "string"}, key="id")
    for table in ("orders", "empty"):
        with pytest.raises(errors.IndexNotBuildable, match=f"index by_status of table {table}"):
            db.execute([CreateIndex(name="by_status", table=table, columns=("status",))])


def keeps_its_partitions(db: Database, orders: Table) -> None:
    with pytest.raises(errors.PartitionsFixed):
        orders.alter(partitions=16)
    done = CliRunner().invoke(app, ["table", "alter", "orders", "--key", "status"])
    assert "No such option" in done.output


def has_no_page(db: Database, orders: Table) -> None:
    for command in ("console", "metrics"):
        done = CliRunner().invoke(app, [command])
        assert f"No such command '{command}'" in done.output
    assert "dev" in lowmark.__version__  # nothing was released


LIMITS: dict[str, Callable[[Database, Table], None] | None] = {
    "Rights.": has_no_rights,
    "Transactions.": has_no_transactions,
    "Secondary indexes.": has_no_secondary_indexes,
    "Another number of partitions, or another key, later.": keeps_its_partitions,
    "Overwriting, and SQL.": None,  # above
    "A web page, metrics, a release on PyPI.": has_no_page,
}


def test_what_it_can_t_do_is_refused_by_name(
    shop: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = re.findall(r"^- \*\*(.*?)\*\*", section("What it can't do"), re.MULTILINE)
    assert said == list(LIMITS)
    for refused in LIMITS.values():
        if refused is not None:
            refused(shop["db"], shop["orders"])
    assert not (tmp_path / "n1").exists()


# -- what is new ----------------------------------------------------------------------------------


def test_the_changes_to_come_are_sorted_said_once_and_name_what_is_there() -> None:
    # given what was not released yet
    changes = (ROOT / "CHANGELOG.md").read_text()
    [text] = re.findall(r"^## Unreleased\n(.*?)(?=^## )", changes, re.MULTILINE | re.DOTALL)
    assert re.findall(r"^### (.*)", text, re.MULTILINE) == ["Added", "Changed", "Fixed"]
    # then no entry begins as another one does
    beginnings = [entry[:40] for entry in re.findall(r"^- (.*)", text, re.MULTILINE)]
    assert len(beginnings) == len(set(beginnings)) > 20
    # and its commands and errors are there; an error may be in the package that raises it
    for words in re.findall(r"`lowmark ([a-z]+)", text):
        assert command_of([words])[1] == [], words
    for error in re.findall(r"\(`([A-Z][a-z]+[A-Z]\w+)`\)", text):
        assert issubclass(getattr(errors, error), errors.LowmarkError)
