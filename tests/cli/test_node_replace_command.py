"""`lowmark node replace`: on the nodes of this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eventually import eventually
from lowmark.cli.app import app
from lowmark.metastore import ClusterRefused
from lowmark.node import Node, NodeOptions
from node.running import QUICK, Running

pytestmark = pytest.mark.slow
runner = CliRunner()


def run(*words: str, code: int = 0) -> str:
    result = runner.invoke(app, ["node", "replace", *words])
    assert result.exit_code == code, result.output
    return result.output


def voters(node: Running) -> int:
    return len(node.client().status().groups[0].voters)


def test_a_directory_is_prepared_and_the_node_in_it_takes_the_place(tmp_path: Path) -> None:
    with (
        Running(tmp_path / "1", name="n1") as first,
        Running(tmp_path / "2", name="n2", join=first.endpoint),
    ):
        ask = ["--node", first.endpoint]
        with Running(tmp_path / "3", name="n3", join=first.endpoint):
            eventually(lambda: voters(first) == 3)
            assert "one of both" in run("n3", *ask, code=2)
            assert "there is no node n9" in run("n9", "--dry-run", *ask, code=1)
            said = json.loads(run("n3", "--dry-run", "--json", *ask, code=1))
            assert said["refused"] == "node n3 can't be replaced: it is up"
        # given a node that is down, and its directory
        eventually(lambda: "can be replaced" in tried("n3", "--dry-run", *ask))
        said = run("n3", "--dry-run", *ask)
        assert "metastore: it votes" in said
        assert "no row is lost" in said
        # when the directory is not a new one, then it is refused, and says whose it is
        own = run("n3", "--data", str(tmp_path / "3"), *ask, code=1)
        assert "this is the directory of node n3 itself" in own
        assert "is open" in run("n3", "--data", str(tmp_path / "1"), *ask, code=1)
        # when it is, then the node in it is to be started, and founds nothing by itself
        data = str(tmp_path / "new")
        assert f"lowmark serve --data {data} --join" in run("n3", "--data", data, *ask)
        with pytest.raises(ClusterRefused, match="take the place of node n3"):
            Node(NodeOptions(data=data, listen="127.0.0.1:0"), QUICK)
        with Running(tmp_path / "new", join=first.endpoint) as third:
            # then it is n3, under a number of its own
            eventually(lambda: voters(first) == 3)
            [row] = [one for one in first.client().status().nodes if one.name == "n3"]
            assert (row.number, row.up) == (third.node.info.number, True)
            assert "it is up" in run("n3", "--data", str(tmp_path / "more"), *ask, code=1)


def tried(*words: str) -> str:
    return runner.invoke(app, ["node", "replace", *words]).output
