from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from lowmark.node import LogFormat, Logging, LogLevel, configure_logging

log = logging.getLogger("lowmark.test")


@pytest.fixture
def stderr() -> Iterator[io.StringIO]:
    """A stream for the logs; afterwards logging is as it was."""
    root, ours = logging.getLogger(), logging.getLogger("lowmark")
    handlers, level = root.handlers[:], ours.level
    yield io.StringIO()
    root.handlers[:] = handlers
    ours.setLevel(level)


def test_a_process_is_quiet_until_something_needs_a_person(stderr: io.StringIO) -> None:
    configure_logging(Logging(), stream=stderr)
    log.info("all is well")
    assert stderr.getvalue() == ""
    log.warning("the disk is nearly full")
    assert 'message="the disk is nearly full"' in stderr.getvalue()


def test_text_keeps_fields_apart_and_quotes_what_could_be_misread(stderr: io.StringIO) -> None:
    configure_logging(Logging(level=LogLevel.INFO), stream=stderr)
    log.info("sealed", extra={"group": "orders", "note": "two\nlines", "empty": "", "size": 7})
    (line,) = stderr.getvalue().splitlines()
    assert line.startswith("time=20")
    assert line.endswith(
        'level=info logger=lowmark.test message=sealed group=orders note="two\\nlines" empty=""'
        " size=7"
    )


def test_json_is_one_object_per_line_with_every_field(stderr: io.StringIO) -> None:
    configure_logging(Logging(level=LogLevel.INFO, format=LogFormat.JSON), stream=stderr)
    # given a field whose name the line uses already
    log.info("sealed %d", 3, extra={"group": "orders", "level": 9})
    line = json.loads(stderr.getvalue())
    # then both are kept
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "lowmark.test",
        "message": "sealed 3",
        "group": "orders",
        "level_": 9,
    }


@pytest.mark.parametrize("form", list(LogFormat))
def test_an_exception_keeps_its_traceback(stderr: io.StringIO, form: LogFormat) -> None:
    configure_logging(Logging(format=form), stream=stderr)
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        log.exception("it failed")
    assert "RuntimeError: boom" in stderr.getvalue()
    assert len(stderr.getvalue().splitlines()) == 1 or form is LogFormat.TEXT


def test_configuring_twice_says_everything_once(stderr: io.StringIO) -> None:
    configure_logging(Logging(), stream=stderr)
    configure_logging(Logging(), stream=stderr)
    log.warning("once")
    assert len(stderr.getvalue().splitlines()) == 1


def test_our_level_leaves_other_libraries_alone(stderr: io.StringIO) -> None:
    configure_logging(Logging(level=LogLevel.DEBUG), stream=stderr)
    logging.getLogger("somebody.else").info("chatter")
    assert stderr.getvalue() == ""
