"""What the guide to Flight shows is run, and prints what it says; the format's page is true."""

from __future__ import annotations

import re
from pathlib import Path

from docs.shown import printed, remarks
from lowmark.backend.port import RETRY
from lowmark.backend.protocol import (
    APPEND,
    CALL,
    CALLS,
    HELLO,
    KEYS_MAX,
    PROTOCOL,
    REQUEST_BYTES_MAX,
    Welcome,
)
from lowmark.server.plain import Put, PutPart, Wanted
from lowmark.server.reading import ANSWER_BYTES
from lowmark.server.service import PLAIN_CALLS, WAIT_S_MAX

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guide" / "flight.md").read_text()
FORMAT = (ROOT / "docs" / "formats" / "flight.md").read_text()


def test_the_python_prints_what_it_says_it_prints(tmp_path: Path) -> None:
    example = "\n".join(re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL))
    assert printed(example, tmp_path).splitlines() == remarks(example)


def test_the_format_names_what_the_code_has() -> None:
    named = set(re.findall(r"`([^`\n]+)`", FORMAT))
    fields = {name for kind in (Welcome, Wanted, Put, PutPart) for name in kind.__struct_fields__}
    assert {HELLO, CALL, APPEND.decode(), CALLS.decode(), "L", *fields} <= named
    assert f"number is {PROTOCOL}." in FORMAT
    # the calls that a client makes are those of the port, and these
    own = {"catalog", "view_since", "look_up", "wait", "renew", "leave"}
    assert own <= named
    assert set(RETRY) - PLAIN_CALLS == {"appender", "batches", "catalog", "release", "view", "wait"}
    # and limits are those of the code
    assert f"at most {REQUEST_BYTES_MAX >> 20} MiB" in FORMAT
    assert f"up to {KEYS_MAX:,} keys" in FORMAT
    assert f"at most {WAIT_S_MAX:g} are waited" in FORMAT
    assert f"takes it to {ANSWER_BYTES >> 20} MiB" in FORMAT
