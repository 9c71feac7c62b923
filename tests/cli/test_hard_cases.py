"""What an attack on the commands found, kept."""

from __future__ import annotations

import json
import socket
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from eventually import eventually
from lowmark.cli.app import app
from lowmark.errors import Rejected
from lowmark.node import NodeClient
from node.running import Running

runner = CliRunner()


def run(*words: str, stdin: bytes = b"") -> Result:
    return runner.invoke(app, list(words), input=stdin)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a node that was stopped in good order."""
    folder = tmp_path_factory.mktemp("stopped") / "data"
    with Running(folder, name="n1") as running:
        running.client().put(b"key", b"value")
    return folder


def test_a_damaged_directory_is_not_an_empty_one(stopped: Path, tmp_path: Path) -> None:
    # given a copy of a directory with one bit flipped in its snapshot, and nothing else to go by
    copy = tmp_path / "copy"
    run_copy(stopped, copy)
    [state] = copy.glob("groups/metastore/snapshots/*/state")
    data = bytearray(state.read_bytes())
    data[len(data) // 2] ^= 1
    state.write_bytes(data)
    for wal in copy.glob("wal/*"):
        wal.unlink()
    # when it is asked anything
    for words in (["catalog", "log"], ["catalog", "show"], ["meta", "range"], ["meta", "get", "x"]):
        answer = run(*words, "--data", str(copy), "--json")
        # then it says that it can't tell
        assert answer.exit_code == 1, (words, answer.output)


def run_copy(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())


@pytest.mark.slow
def test_a_directory_says_nothing_of_times_after_its_node_was_stopped(stopped: Path) -> None:
    def show(at: datetime) -> int:
        return run("catalog", "show", "--data", str(stopped), "--at", at.isoformat()).exit_code

    now = datetime.now(UTC)
    eventually(lambda: show(datetime.now(UTC)) == 1)
    assert show(now - timedelta(days=1)) == 0


def test_keys_of_the_cluster_s_own_can_not_be_written_through_the_door(tmp_path: Path) -> None:
    with Running(tmp_path / "data", name="n1") as running:
        client = running.client()
        for key in (b"catalog.version", b"node.7", b"topology", b"cluster", b"zone.1.baseline"):
            with pytest.raises(Rejected, match="belongs to Lowmark"):
                client.put(key, b"junk")
            with pytest.raises(Rejected, match="belongs to Lowmark"):
                client.remove(key)
        assert client.status().catalog is not None


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (["serve", "--data", ""], b""),
        (["serve", "--data", "   "], b""),
        (["catalog", "apply", "-", "--node", "127.0.0.1:1"], b"\xff\xfe\x00garbage"),
        (["catalog", "apply", "-", "--node", "127.0.0.1:1"], b"[" * 100_000),
    ],
)
def test_what_can_not_be_read_is_wrong_use(words: list[str], stdin: bytes) -> None:
    assert run(*words, stdin=stdin).exit_code == 2


def test_a_key_or_a_name_that_is_no_text_is_taken_or_refused_but_never_a_crash(
    stopped: Path, tmp_path: Path
) -> None:
    odd = b"\xff".decode(errors="surrogateescape")
    assert run("meta", "get", odd, "--data", str(stopped)).exit_code in {0, 1}
    words = ["serve", "--data", str(tmp_path / "new"), "--listen", "127.0.0.1:0", "--name", odd]
    refused = run(*words)
    assert refused.exit_code in {1, 2}
    assert not isinstance(refused.exception, UnicodeError)


def test_somebody_else_behind_an_address_is_no_node() -> None:
    # given a server that speaks something else
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

        talking = threading.Thread(target=answer)
        talking.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        # when it is taken for a node
        with NodeClient(address, timeout_s=2.0) as client, pytest.raises(Exception) as failure:
            client.status()
        talking.join()
    # then that is said by name
    assert type(failure.value).__module__.startswith("lowmark")


def test_a_watch_of_a_directory_tells_what_its_node_knew_and_ends(stopped: Path) -> None:
    # when a directory is watched from the beginning
    told = run("meta", "watch", "key", "--from", "1", "--data", str(stopped), "--json")
    # then every revision that changed the key is there, and that is all
    assert told.exit_code == 0
    first, event = (json.loads(line) for line in told.stdout.splitlines())
    assert first == {"from_revision": 1}
    assert [(one["key"], one["value"]) for one in event["changes"]] == [("key", "value")]
    # and from the end on there is nothing
    assert run("meta", "watch", "--data", str(stopped)).stdout == ""
