"""The first moments of a command: what it imports, and what Ctrl-C does meanwhile."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from typer.main import get_command

import lowmark
from lowmark.cli.app import COMMANDS, SUMMARIES, app, root
from lowmark.node import LogLevel
from lowmark.server import Server

HEAVY = {"numpy", "pandas", "polars", "pyarrow", "pyspark", "msgspec", "immutables", "asyncio"}
"""What takes its time to import."""

LIGHT = {"cli", "errors", "version"}
"""What the version can be shown with."""

IMPORTED = """
import atexit, sys
atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))
"""

INTERRUPTED_AT = """
import signal, sys
place = sys.argv[1]
signal.signal(signal.SIGINT, signal.default_int_handler)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == place:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""

MODULE = """
import runpy
sys.argv = ["lowmark", *sys.argv[2:]]
runpy.run_module("lowmark", run_name="__main__", alter_sys=True)
"""

SCRIPT = """
from importlib.metadata import entry_points
sys.argv = ["lowmark", *sys.argv[2:]]
[script] = entry_points(group="console_scripts", name="lowmark")
sys.exit(script.load()())
"""


def ran(code: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *words], cwd=cwd, capture_output=True, text=True, check=False
    )


def imported(code: str, *words: str, cwd: Path) -> tuple[str, set[str], set[str]]:
    """What a program printed, the packages it has imported, and which of them are ours."""
    done = ran(IMPORTED + code, *words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    modules = done.stderr.split()
    ours = {name.split(".")[1] for name in modules if name.startswith("lowmark.")}
    return done.stdout, {name.partition(".")[0] for name in modules}, ours


def test_importing_lowmark_imports_none_of_its_parts(tmp_path: Path) -> None:
    _, packages, ours = imported("import lowmark", cwd=tmp_path)
    assert (packages & HEAVY, ours) == (set(), {"version"})
    assert "typing" not in packages


def test_every_name_of_lowmark_is_found_when_it_is_used() -> None:
    assert set(lowmark.__all__) <= set(dir(lowmark))
    assert all(getattr(lowmark, name) is not None for name in lowmark.__all__)
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        lowmark.opne  # noqa: B018


def test_the_version_is_shown_without_importing_what_does_the_work(tmp_path: Path) -> None:
    shown, packages, ours = imported(MODULE, "", "--version", cwd=tmp_path)
    assert shown == f"lowmark {lowmark.__version__}\n"
    assert (packages & HEAVY, ours - LIGHT) == (set(), {"__main__"} & ours)


@pytest.mark.slow
def test_a_command_does_not_import_the_other_commands(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    done = ran(IMPORTED + MODULE, "", "log", "--help", cwd=tmp_path)
    commands = {f"lowmark.cli.{module}" for module in COMMANDS.values()}
    assert commands & set(done.stderr.split()) == {"lowmark.cli.log"}


@pytest.mark.slow
def test_a_command_that_reads_no_rows_imports_no_library_for_data_frames(tmp_path: Path) -> None:
    lowmark.open(tmp_path / "data").close()
    _, packages, _ = imported(MODULE, "", "table", "list", "--data", "data", cwd=tmp_path)
    assert "pyarrow" in packages
    assert packages & {"pandas", "polars", "pyspark"} == set()


COUNTED = """
import atexit, sys
atexit.register(lambda: print("IMPORTED", *sorted(sys.modules), file=sys.stderr))
"""

MODULES_MAX = {
    "--help": 190,
    "table --help": 570,
    "table list --data data": 567,
    "explain orders --data data": 574,
    "watermark --data data": 550,
    "log verify data": 548,
    "table list --node": 508,
}
"""This many modules, beside those of Python itself, may a command import. A limit is some ten above
what it was when it was set: where a command needs more, look at what came in before you raise it.
"""
NEVER = {"pandas", "polars", "pyspark", "deltalake", "pyiceberg", "matplotlib"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("counted")
    with lowmark.open(place / "data") as db:
        db.create_table("orders", {"id": "int64"}, key="id", partitions=2).append([{"id": 1}])
    return place


@pytest.mark.slow
@pytest.mark.parametrize("command", MODULES_MAX)
def test_a_command_that_shows_something_imports_few_modules(command: str, data: Path) -> None:
    words = command.split()
    with contextlib.ExitStack() as open_here:
        if words[-1] == "--node":
            db = open_here.enter_context(lowmark.open(data / "data"))
            words.append(open_here.enter_context(Server(db, "127.0.0.1:0")).address)
        done = ran(COUNTED + MODULE, "", *words, cwd=data)
    said, _, names = done.stderr.rpartition("IMPORTED ")
    assert done.returncode == 0, said
    assert_few(names.split(), most=MODULES_MAX[command])


def assert_few(imported: Iterable[str], *, most: int) -> None:
    """Fails with the packages that the modules are of, and with how many of each."""
    foreign = [name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names]
    packages = Counter(
        ".".join(name.split(".")[: 1 + name.startswith("lowmark.")]) for name in foreign
    )
    assert packages.keys() & NEVER == set()
    assert len(foreign) <= most, packages.most_common()


def test_every_command_is_found_under_its_name() -> None:
    group = get_command(app)
    names = group.list_commands(None)  # type: ignore[attr-defined]
    assert names == list(COMMANDS)
    for name in names:
        command = group.get_command(None, name)  # type: ignore[attr-defined]
        assert command.name == name
        assert command.help.partition("\n\n")[0] == SUMMARIES[name]  # what the list says of it


def test_the_log_levels_on_the_command_line_are_those_of_the_settings() -> None:
    choices, _ = get_args(get_type_hints(root)["log_level"])
    assert set(get_args(choices)) == {level.value for level in LogLevel}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "start"),
    [
        pytest.param("typer", SCRIPT, id="typer, console script"),
        pytest.param("typer", MODULE, id="typer"),
        pytest.param("numpy", MODULE, id="numpy"),
        pytest.param("pyarrow.lib", MODULE, id="pyarrow"),
        pytest.param("lowmark.client", MODULE, id="lowmark.client"),
    ],
)
def test_an_interrupt_while_modules_are_imported_is_one_line_and_130(
    module: str, start: str, tmp_path: Path
) -> None:
    # given a command that is interrupted when it comes to import a module
    words = ("table", "list", "--data", "nowhere")
    # when it is started
    done = ran(INTERRUPTED_AT + start, module, *words, cwd=tmp_path)
    # then it ends like any command that was interrupted
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.slow
def test_a_command_that_was_told_to_ignore_interrupts_ignores_them(tmp_path: Path) -> None:
    ignoring = INTERRUPTED_AT.replace("signal.default_int_handler", "signal.SIG_IGN")
    done = ran(ignoring + MODULE, "typer", "--version", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    done = ran(
        ignoring + MODULE, "lowmark.node", "table", "list", "--data", "nowhere", cwd=tmp_path
    )
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        "error: there is no directory nowhere",
    )


def test_the_console_script_is_the_command() -> None:
    [script] = entry_points(group="console_scripts", name="lowmark")
    assert script.value == "lowmark.cli:main"
