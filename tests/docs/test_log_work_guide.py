"""What the guide says of compacting logs by hand, and of new copies, is run on two nodes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lowmark import errors
from lowmark.cli.app import app
from server.nodes import Nodes, table_of

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "operate.md").read_text()


def commands(heading: str, address: str, *, program: str) -> Iterator[list[str]]:
    """Those of a section that begin so, at the address that a node has here."""
    [part] = re.findall(rf"^## {heading}\n(.*?)^## ", GUIDE, re.MULTILINE | re.DOTALL)
    for script in re.findall(r"^```sh\n(.*?)^```", part, re.MULTILINE | re.DOTALL):
        for line in script.splitlines():
            if line.startswith(program):
                line = re.sub(r"127\.0\.0\.1:\d+", address, line)
                yield shlex.split(line, comments=True)[1:]


@pytest.mark.slow
@pytest.mark.xdist_group("log work")
def test_what_the_guide_shows_works_on_two_nodes(tmp_path: Path) -> None:
    # given a table on two nodes
    with Nodes(tmp_path, 2) as nodes:
        with nodes.connect(0) as db:
            orders = table_of(db, "orders", replicas=2, partitions=1)
            orders.append([{"id": number, "status": "new"} for number in range(10)])
        # when the commands are run as they stand there
        work = [*commands("Compacting logs by hand", nodes.address(0), program="lowmark log")]
        assert [words[1] for words in work] == ["compact"] * 4 + ["rewrite"] * 3
        said = []
        for words in work:
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, (words, done.output)
            said.append(done.stdout)
        # then they print what it says they print
        assert "metastore" in said[0]
        assert "would be freed of 2 groups" in said[0]
        shown = re.findall(r"^group .*freed$", GUIDE, re.MULTILINE)
        assert said[3].splitlines()[0].split() == shown[0].split()
        assert "0 entries would be written again" in said[4]
        assert "written again, 0 B freed on the leaders" in said[5]
        # and what is sound is not thrown away, by the name that it gives
        rebuilds = [
            *commands("When a file is damaged", nodes.address(1), program="lowmark partition")
        ]
        assert len(rebuilds) == 2
        for words in rebuilds:
            done = CliRunner().invoke(app, [*words, "--json"])
            assert done.exit_code == 1
            assert '"CopySound"' in done.stderr


def test_the_errors_that_it_names_are_there() -> None:
    for name in set(re.findall(r"^\| `(Copy\w+)`", GUIDE, re.MULTILINE)):
        assert issubclass(getattr(errors, name), errors.Rejected | errors.Unavailable)
