"""Errors that the documentation names are there, by that name, in `lowmark.errors`."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import lowmark
from lowmark import errors
from lowmark.client import Gap

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    # `seeds.md` names classes of five projects; `test_seeds_guide` holds ours to the code.
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "seeds.md"),
]
_NAME = re.compile(r"`(?:lowmark\.)?(?:errors\.)?((?:[A-Z][a-z]+)+)`")
_CAUGHT = re.compile(r"\bexcept \(?(?:lowmark\.)?(?:errors\.)?([A-Z]\w+)")
_OTHERS = frozenset(
    # Names in the documentation that are no errors of Lowmark's.
    {
        "Adopted",
        "AnalysisException",
        "AsOfReader",
        "Leadership",
        "OpenLedger",
        "Publisher",
        "RaftNode",
        "ReadPlan",
        "RenewCursor",
        "Requests",
        "RunHolds",
        "TableReaders",
        "TableWriter",
        "Ask",
        "DatabaseInfo",
        "Do",
        "DoExchange",
        "DoGet",
        "DoPut",
        "FlightInfo",
        "GetFlightInfo",
        "GetSchema",
        "Producing",
        "Server",
        "Future",
        "NodeClient",
        "InstallWant",
        "None",
        "NotHere",
        "PartitionStatus",
        "Path",
        "ReadIndex",
        "Reader",
        "Session",
        "ThreadAnswer",
    }
)


def names_in(page: Path) -> set[str]:
    text = page.read_text()
    return {*_NAME.findall(text), *_CAUGHT.findall(text)} - _OTHERS


def test_every_error_that_the_documentation_names_is_found_by_that_name() -> None:
    found = {name: page.name for page in PAGES for name in names_in(page)}
    assert {"GapFound", "BelowWatermark", "SparkMissing", "Locked", "OutcomeUnknown"} <= set(found)
    for name, page in found.items():
        error = getattr(errors, name, None)
        assert error is not None, f"{page} names {name}: add it to lowmark.errors, or to _OTHERS"
        assert issubclass(error, lowmark.LowmarkError), name
        assert error.__name__ == name


def test_every_name_in_lowmark_errors_is_the_error_of_that_name() -> None:
    listed = [name for name in dir(errors) if name in errors._HOMES]
    assert listed == sorted(errors._HOMES)
    for name in listed:
        assert getattr(errors, name).__name__ == name
        assert issubclass(getattr(errors, name), lowmark.LowmarkError)
    with pytest.raises(AttributeError, match="GapsFound"):
        _ = errors.GapsFound


def test_errors_that_the_python_api_exports_are_all_there() -> None:
    from lowmark import client  # noqa: PLC0415

    for name in client.__all__:
        kind = getattr(client, name)
        if isinstance(kind, type) and issubclass(kind, lowmark.LowmarkError):
            assert getattr(errors, name) is kind


def test_a_new_user_finds_what_there_is_and_import_stays_cheap() -> None:
    assert {"open", "errors", "LowmarkError"} <= set(dir(lowmark))
    # given a fresh interpreter: what is imported shows what an import costs
    program = (
        "import lowmark, sys; dir(lowmark); dir(lowmark.errors);"
        "print([name for name in ('pyarrow', 'numpy', 'lowmark.client') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


def test_the_hint_of_an_error_is_a_line_of_its_own() -> None:
    error = errors.Rejected("it is red", detail="It was painted.", hint="Paint it blue.")
    assert str(error) == "it is red\nIt was painted.\nhint: Paint it blue."
    assert str(errors.Rejected("it is red", hint="Paint it.")) == "it is red\nhint: Paint it."
    assert str(errors.Rejected("it is red")) == "it is red"
    assert error.one_line() == "it is red It was painted. Paint it blue."


def test_a_traceback_shows_the_name_to_catch() -> None:
    for name in errors._HOMES:
        kind = getattr(errors, name)
        assert f"{kind.__module__}.{kind.__qualname__}" == f"lowmark.errors.{name}"
    shown = traceback.format_exception_only(errors.TableUnknown("ordres", known=["orders"]))
    assert "".join(shown) == (
        "lowmark.errors.TableUnknown: there is no table ordres\nhint: Did you mean orders?\n"
    )


def test_an_error_comes_out_of_another_process_as_it_went_in() -> None:
    # given one of every class, as if its constructor had run
    given: list[errors.LowmarkError] = []
    for name in (*errors._HOMES, "NoMemory", "NoThreads", "Rejected"):
        kind: type[errors.LowmarkError] = getattr(errors, name)
        made = kind.__new__(kind)
        errors.LowmarkError.__init__(made, "it is red", detail="Paint.", hint="Wait.")
        made.__dict__["more"] = 3
        given.append(made)
    # and some whose constructors want something else than a message
    given += [
        errors.PackageMissing("polars", needed_for="to_polars()"),
        errors.NoThreads(where="here"),
        errors.GapFound(Gap(0, 1, 2, "expired")),
        errors.ProducerClosed(),
        errors.ReaderEnded(read=True),
        errors.DiskFull("data"),
        errors.Closed("data"),
    ]
    # when they are pickled, as pools of processes and Spark do
    for error in given:
        arrived = pickle.loads(pickle.dumps(error))  # noqa: S301 - it is ours
        # then what arrives is the same
        assert type(arrived) is type(error)
        assert (arrived.args, str(arrived)) == (error.args, str(error))
        assert vars(arrived) == vars(error)
