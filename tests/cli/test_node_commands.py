"""`lowmark serve`, `status` and `meta`: against a node in this process, and its directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lowmark.cli.app import app
from lowmark.cli.meta import bytes_of, words_of
from node.running import Running

runner = CliRunner()


@dataclass
class Place:
    """A node with some keys, and the directory of one that was stopped with the same keys."""

    endpoint: str
    directory: Path
    revision: int


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("cli")

    def fill(running: Running) -> int:
        client = running.client()
        client.put(b"fruit/apple", b"red")
        client.put(b"fruit/apple", b"green")
        client.put(b"fruit/pear", b"\xff\x00")
        client.put(b"fruit/plum", b"blue")
        return client.remove(b"fruit/plum").revision

    with Running(folder / "stopped", name="n1") as stopped:
        fill(stopped)
    with Running(folder / "running", name="n1") as running:
        yield Place(running.endpoint, folder / "stopped", fill(running))


@pytest.fixture(params=["--node", "--data"])
def where(request: pytest.FixtureRequest, place: Place) -> list[str]:
    """How to say it: both must answer alike."""
    return [request.param, place.endpoint if request.param == "--node" else str(place.directory)]


def run(*words: str, code: int = 0) -> str:
    result = runner.invoke(app, list(words))
    assert result.exit_code == code, result.output
    return result.stdout


def run_json(*words: str, code: int = 0) -> Any:
    return json.loads(run(*words, "--json", code=code))


def test_get_shows_a_value(where: list[str]) -> None:
    shown = run("meta", "get", "fruit/apple", *where)
    assert "green" in shown
    found = run_json("meta", "get", "fruit/apple", *where)
    assert (found["value"], found["version"], found["size"]) == ("green", 2, 5)
    earlier = run_json("meta", "get", "fruit/apple", "--at", str(found["created"]), *where)
    assert earlier["value"] == "red"


def test_bytes_that_are_no_text_are_shown_in_hex(where: list[str]) -> None:
    assert run_json("meta", "get", "fruit/pear", *where)["value"] == "0xff00"


def test_a_key_without_a_value_is_no_error_but_exit_code_1(where: list[str]) -> None:
    assert "has no value" in run("meta", "get", "fruit/plum", *where, code=1)
    assert run_json("meta", "get", "fruit/plum", *where, code=1) is None


def test_range_lists_keys_in_order(where: list[str]) -> None:
    assert "0xff00" in run("meta", "range", "fruit/", *where)
    found = run_json("meta", "range", "fruit/", *where)
    assert [(e["key"], e["value"]) for e in found["entries"]] == [
        ("fruit/apple", "green"),
        ("fruit/pear", "0xff00"),
    ]
    first = found["entries"][0]["revision"] - 1
    earlier = run_json("meta", "range", "fruit/", "--at", str(first), *where)
    assert (earlier["revision"], [e["value"] for e in earlier["entries"]]) == (first, ["red"])
    bare = run_json("meta", "range", "fruit/", "--keys-only", "--limit", "1", *where)
    assert [sorted(e) for e in bare["entries"]] == [["key", "revision", "size", "time", "version"]]


def test_history_shows_what_became_of_a_key(where: list[str]) -> None:
    assert "blue" in run("meta", "history", "fruit/plum", *where)
    found = run_json("meta", "history", "fruit/plum", *where)
    assert [(e["value"], e["removed"]) for e in found] == [("blue", False), (None, True)]
    assert run_json("meta", "history", "nothing", *where) == []


def test_status_shows_nodes_groups_and_the_metastore(where: list[str], place: Place) -> None:
    shown = run("status", *where)
    for words in ("n1", "group metastore", "metastore revision", "catalog version"):
        assert words in shown
    found = run_json("status", *where)
    assert found["metastore"]["revision"] == place.revision
    assert [node["name"] for node in found["nodes"]] == ["n1"]
    assert found["groups"][0]["members"][0]["applied"] > 0
    # and of a directory that no process has open, that nothing runs there
    offline = "--data" in where
    assert ("no process has it open" in shown) == ("metastore: not running" in shown) == offline
    assert ("n1 leads" in shown) != offline


def test_watch_ends_after_so_many(place: Place) -> None:
    words = ["meta", "watch", "fruit/", "--from", "1", "--count", "3", "--node", place.endpoint]
    lines = run(*words).splitlines()
    assert [line.rpartition("  ")[2] for line in lines] == [
        "fruit/apple = red",
        "fruit/apple = green",
        "fruit/pear = 0xff00",
    ]
    started, *events = [json.loads(line) for line in run(*words, "--json").splitlines()]
    assert started == {"from_revision": 1}
    assert [event["changes"][0]["value"] for event in events] == ["red", "green", "0xff00"]


def test_the_environment_names_the_node(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWMARK_NODE", place.endpoint)
    assert run_json("meta", "get", "fruit/apple")["value"] == "green"
    # and a directory that is named on the command line wins over it
    monkeypatch.setenv("LOWMARK_NODE", "127.0.0.1:1")
    assert run_json("meta", "get", "fruit/apple", "--data", str(place.directory))


def test_errors_of_a_node_are_shown_as_they_are(place: Place) -> None:
    result = runner.invoke(
        app, ["meta", "get", "k", "--at", "999999", "--node", place.endpoint, "--json"]
    )
    assert result.exit_code == 1
    said = json.loads(result.stderr)
    assert said["kind"] == "RevisionUnknown"
    assert said["hint"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["status", "--node", "127.0.0.1:1"], 1, "no node answers at 127.0.0.1:1"),
        (["status", "--node", "nonsense"], 2, "nonsense"),
        (["status", "--data", "nowhere"], 2, "there is no directory nowhere"),
        (["status", "--data", ".", "--node", "127.0.0.1:1"], 2, "can't be given together"),
        (["status", "--data", "127.0.0.1:1"], 2, "is the address of a server"),
        (["serve", "--data", "127.0.0.1:6570"], 2, "is the address of a server"),
        (["serve", "--data", "s3://bucket/n1"], 2, "is not a directory of this machine"),
        (["serve", "--data", "/etc"], 2, "is not a data directory of Lowmark"),
        (["serve", "--data", "/etc/hostname"], 2, "is a file"),
        (["serve", "--data", "d", "--listen", "0.0.0.0:6570"], 2, "no TLS and no tokens"),
        (["serve", "--data", "d", "--peers", "10.0.0.1:6570"], 2, "no TLS and no tokens"),
        (["serve", "--data", "d", "--listen", "[::]:1", "--insecure"], 2, "--advertise"),
        (["serve", "--data", "d", "--join", "a:1,,b:2"], 2, "host:port"),
        (["serve", "--data", "d", "--dev", "3", "--insecure"], 2, "no other options"),
        (["serve", "--data", "d", "--attribute", "ssd"], 2, "is not an attribute"),
        (["serve"], 2, "--data"),
    ],
)
def test_wrong_use_and_silence_have_their_exit_codes(
    words: list[str], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, words)
    assert result.exit_code == code, result.output
    assert said in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_node_of_another_cluster_is_told_so_and_not_started(place: Place) -> None:
    words = ["serve", "--data", str(place.directory), "--join", place.endpoint, "--json"]
    result = runner.invoke(app, [*words, "--listen", "127.0.0.1:0"])
    assert result.exit_code == 1
    said = json.loads(result.stderr.splitlines()[-1])
    assert said["kind"] == "ClusterRefused"
    assert "another cluster" in said["error"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"plain", "plain"),
        ("grün".encode(), "grün"),
        (b"", ""),
        (b"\xff", "0xff"),
        (b"a\nb", "0x610a62"),
        (b"0xff", "0x30786666"),
    ],
)
def test_what_is_shown_can_be_typed_again(data: bytes, words: str) -> None:
    assert words_of(data) == words
    assert bytes_of(words) == data
