"""What the metastore writes and sends, for its page in docs/formats/."""

from __future__ import annotations

import msgspec

from docs.example_group import Shape
from lowmark.log.files import read_whole
from lowmark.metastore import (
    Branch,
    ClusterSettings,
    Do,
    Identity,
    MetastoreMachine,
    NodeInfo,
    Put,
    Remove,
    Topology,
    missing,
)
from lowmark.metastore.commands import Command, Compact, Invoke, Take, encode
from lowmark.metastore.identity import PATH, save_identity
from lowmark.metastore.machine import _Header
from lowmark.metastore.nodes import encode as encode_value
from lowmark.metastore.state import Lease, Made, Record
from lowmark.runtime.sim import SimDisk

__all__ = ["CLUSTER", "COMMAND", "NODE", "NOTE", "TOPOLOGY", "machine", "metastore_examples"]
__all__ += ["metastore_shapes"]

COMMAND = Invoke(
    Branch(missing(b"k"), Do((Put(b"k", b"a value"), Remove(b"old")), answer=1), Do(answer=2))
)
CLUSTER = ClusterSettings(id="00c0ffee00c0ffee")
NODE = NodeInfo(
    number=2,
    name="n2",
    address="n2:7400",
    endpoint="n2:7401",
    rack="r1",
    attributes={"disk": "ssd"},
)
TOPOLOGY = Topology(version=3, nodes=(NodeInfo(number=1, name="n1", address="n1:7400"), NODE))
NOTE = Identity(
    number=2,
    name="n2",
    cluster=CLUSTER.id,
    peers={"1": "n1:7400"},
    rack=NODE.rack,
    attributes=NODE.attributes,
)
_TIME = 1_735_689_600_000 << 16


def machine() -> MetastoreMachine:
    """A state with a cut, a removal, and a lease."""
    some: list[Command] = [
        Invoke(Do((Put(b"a", b"1"), Put(b"b", b"1")))),
        Invoke(Do((Put(b"a", b"2"),))),
        Take("reader", 7, 60_000, 3, "a test"),
        Compact(2),
        Invoke(Do((Put(b"a", b"3"), Remove(b"b")))),
    ]
    made = MetastoreMachine()
    for index, command in enumerate(some, start=1):
        made.apply(index, _TIME + index, encode(command))
    return made


def metastore_examples() -> dict[str, bytes]:
    """What the page shows, by the name in its block."""
    disk = SimDisk()
    save_identity(disk, NOTE)
    return {
        "a command of the metastore": encode(COMMAND),
        "a snapshot of the metastore": b"".join(map(bytes, machine().snapshot())),
        "the value of cluster": encode_value(CLUSTER) + b"\n",
        "the value of node.2": encode_value(NODE) + b"\n",
        "the value of topology": encode_value(TOPOLOGY) + b"\n",
        PATH: read_whole(disk, PATH),
    }


def _fields(of: type[msgspec.Struct], **inner: Shape) -> list[Shape]:
    return [inner.get(name, name) for name in of.__struct_fields__]


def metastore_shapes() -> dict[str, list[Shape]]:
    """The arrays of each example, one after another."""
    state = machine().state
    put: Shape = ("Put", ["tag", "key", "length"])
    remove: Shape = ("Remove", ["tag", "key"])
    condition: Shape = ("Not", ["tag", ("Exists", ["tag", "key"])])
    then: Shape = ("Do", ["tag", ("operations", [put, remove]), "answer"])
    otherwise: Shape = ("Do", ["tag", "operations", "answer"])
    branch: Shape = ("Branch", ["tag", condition, then, otherwise])
    lease: Shape = ("Lease", _fields(Lease))
    made: Shape = ("Made", _fields(Made))
    header = _fields(_Header, leases=("leases", [lease]))
    revisions: list[Shape] = [("revision", ["revision", made]) for _ in state.made]
    keys: list[Shape] = [
        ("key", ["key", ("records", [("Record", _fields(Record)) for _ in history])])
        for history in state.histories.values()
    ]
    return {
        "a command of the metastore": [("head", ["format", ("Invoke", ["tag", branch])])],
        "a snapshot of the metastore": [
            ("header", header),
            ("revisions", revisions),
            ("keys", keys),
        ],
    }
