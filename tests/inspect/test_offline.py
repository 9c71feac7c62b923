from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lowmark
from eventually import eventually
from lowmark.errors import Rejected, Unavailable
from lowmark.group import EntryTooNew, envelope
from lowmark.group.storage import raft_entry
from lowmark.inspect import DataInUse, open_offline
from lowmark.inspect.offline import _Replay
from lowmark.log import Entry as LogEntry
from lowmark.metastore import MetastoreMachine
from lowmark.metastore.commands import Tick, encode
from lowmark.metastore.errors import RevisionUnknown
from lowmark.raft import ConfState, EntryKind
from lowmark.raft.membership import Change, ChangeKind, ConfChange
from node.running import QUICK, Running


def files_below(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def test_a_directory_says_what_its_node_said(tmp_path: Path) -> None:
    # given what a node with a snapshot and a log after it answered
    with Running(tmp_path, name="n1") as running:
        client = running.client()
        for number in range(20):
            client.put(b"key/%d" % (number % 7), b"%d" % number)
        group = running.node.cluster.metastore.group
        running.node.bridge.ask_now(group.snapshot, timeout_s=10)
        client.remove(b"key/3")
        last = client.put(b"after", b"\xff\x00")
        pages = list(client.range())
        story = [e for page in client.history(b"key/3") for e in page.entries]
    before = files_below(tmp_path)
    # when nobody has it open
    with open_offline(str(tmp_path)) as store:
        # then the directory says the same
        assert [e for p in store.range() for e in p.entries] == [
            e for p in pages for e in p.entries
        ]
        assert [e for page in store.history(b"key/3") for e in page.entries] == story
        entry = store.get(b"after", at=last.revision).entry
        assert entry is not None
        assert entry.value == b"\xff\x00"
        short = [e.key for p in store.range(b"key/", limit=2, keys_only=True) for e in p.entries]
        assert short == [b"key/0", b"key/1"]
        with pytest.raises(RevisionUnknown):
            store.get(b"after", at=last.revision + 1)
        status = store.status()
    assert status.source == f"directory {tmp_path}"
    assert [(node.name, node.up, node.role) for node in status.nodes] == [("n1", None, "voter")]
    assert status.metastore is not None
    assert status.metastore.revision == last.revision
    # and is as it was
    assert files_below(tmp_path) == before


@pytest.mark.slow
def test_a_member_of_several_that_was_stopped_says_all_that_it_knew(tmp_path: Path) -> None:
    with Running(tmp_path / "1", name="n1") as first:
        client = first.client()
        with Running(tmp_path / "2", name="n2", join=first.endpoint) as second:
            for number in range(10):
                client.put(b"k", b"%d" % number)
            history = [e for page in second.client().history(b"k") for e in page.entries]
        with open_offline(str(tmp_path / "2")) as store:
            assert [e for page in store.history(b"k") for e in page.entries] == history
            assert [node.name for node in store.status().nodes] == ["n1", "n2"]


@pytest.mark.slow
def test_what_no_majority_has_is_not_known_though_it_is_durable_here(tmp_path: Path) -> None:
    # given two that vote
    short = replace(QUICK.metastore, request_timeout_ms=700)
    hasty = replace(QUICK, metastore=short, group=replace(QUICK.group, request_timeout_ms=700))
    with Running(tmp_path / "1", name="n1", settings=hasty) as first:
        client = first.client()
        with Running(tmp_path / "2", name="n2", join=first.endpoint, settings=hasty):
            eventually(lambda: len(client.status().groups[0].voters) == 2)
            client.put(b"k", b"agreed")
            group = first.node.cluster.metastore.group
            assert group.leads
        # when the leader writes alone, after the other has gone
        with pytest.raises(Unavailable):
            client.put(b"k", b"alone")
        status = first.node.bridge.ask_now(group.status, timeout_s=10)
        assert status.written_index > status.committed
    # then its directory does not take that for true
    with open_offline(str(tmp_path / "1")) as store:
        entry = store.get(b"k").entry
        assert entry is not None
        assert entry.value == b"agreed"
        assert store.problem == ""
        assert store.unknown_entries >= 1
        assert "not known to be committed" in store.status().groups[0].members[0].problem


def test_a_directory_whose_node_runs_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with Running(tmp_path), pytest.raises(DataInUse) as refused, open_offline(str(tmp_path)):
        pass
    assert str(os.getpid()) in refused.value.message
    assert "--node" in refused.value.hint


def test_a_directory_that_a_program_has_open_is_refused_with_a_way_out_that_works(
    tmp_path: Path,
) -> None:
    """It said that a node runs there, and to ask it by its address. A program has none."""
    with (
        lowmark.open(tmp_path),
        pytest.raises(DataInUse) as refused,
        open_offline(str(tmp_path)),
    ):
        pass
    assert "node is running" not in str(refused.value)
    assert "close the database there" in refused.value.hint
    # and that is so
    with open_offline(str(tmp_path)) as store:
        assert store.problem == ""


def test_what_is_no_data_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(Rejected), open_offline(str(path)):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_read_with_every_kind_of_entry_that_a_group_writes() -> None:
    # given one entry of each kind; a new kind needs one here, and a word in `offline`
    members = ConfState(voters=(1,))
    change = ConfChange(changes=(Change(ChangeKind.ADD_LEARNER, 2),)).encode()
    samples = {
        envelope.COMMAND: envelope.wrap_command(1, encode(Tick())),
        envelope.CHANGE: envelope.wrap_change(EntryKind.CHANGE, change),
        envelope.JOINT_CHANGE: envelope.wrap_change(EntryKind.JOINT_CHANGE, change),
        envelope.COPY: envelope.copy_of(1, envelope.wrap_command(1, encode(Tick()))),
        envelope.VERSION: envelope.seal_version(1),
        envelope.FOUNDING: envelope.seal_founders(members),
        envelope.RESET: envelope.seal_reset(members),
    }
    kinds = {
        value
        for name, value in vars(envelope).items()
        if name.isupper() and not name.startswith("_") and not name.endswith("_BYTES")
    }
    assert samples.keys() == kinds
    for kind, data in samples.items():
        # then each is known; and one that nobody knows is refused by name, not passed over
        _apply(data)
        with pytest.raises(EntryTooNew):
            _apply(bytes([max(kinds) + kind]))


def _apply(data: bytes) -> None:
    log: Any = SimpleNamespace(meta=b"", name="metastore")
    _Replay(1, log, MetastoreMachine())._apply(raft_entry(LogEntry(1, 1, data)))
