"""The page on the metastore has every tag and every field, and its examples are real."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from docs.example_metastore import CLUSTER, COMMAND, NODE, NOTE, TOPOLOGY, machine
from docs.pages import FORMATS, blocks, hex_lines, tables
from lowmark.log.files import write_whole
from lowmark.metastore import (
    Branch,
    Compare,
    Identity,
    Lease,
    MetastoreMachine,
    Put,
    commands,
    coordinator,
    forwarding,
    load_identity,
)
from lowmark.metastore.commands import (
    StoredBranch,
    StoredDo,
    StoredInvoke,
    StoredPut,
    check,
    decode,
    encode,
)
from lowmark.metastore.coordinator import JOIN_SERVICE, JoinAsk, JoinReply
from lowmark.metastore.identity import PATH
from lowmark.metastore.machine import _BLOCK, FORMAT, Outcome, _Header
from lowmark.metastore.nodes import decode_cluster, decode_node, decode_topology
from lowmark.metastore.state import Made, Record
from lowmark.runtime.sim import SimDisk
from lowmark.tokens import PASS_ROLE, Right, pass_key
from lowmark.tokens import Record as TokenRecord

PAGE = "metastore.md"
TAGGED: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "Kinds of commands": get_args(commands.StoredCommand),
    "Statements": (StoredDo, StoredBranch),
    "Operations": (StoredPut, commands.Remove, commands.RemoveRange),
    "Conditions": (
        commands.Exists,
        commands.ValueIs,
        commands.Revision,
        commands.Version,
        commands.AllOf,
        commands.AnyOf,
        commands.Not,
        commands.LeaseIsOver,
        commands.LeaseEnds,
    ),
    "The service `metastore.propose`": get_args(forwarding._Reply),
    "Outcomes": get_args(Outcome),
    "The service `cluster.join`": get_args(JoinReply),
}
ARRAYS: dict[str, type[msgspec.Struct]] = {
    "Header": _Header,
    "Lease": Lease,
    "Made": Made,
    "Record": Record,
}


def shown(name: str) -> bytes:
    [block] = [block for block in blocks(PAGE) if block.info == name]
    if block.language == "hex":
        return b"".join(data for _, data, _ in hex_lines(block.text))
    return block.text.encode()


def test_the_page_has_every_tag_with_its_fields_in_order() -> None:
    said = {
        table.heading: [(int(row[0]), row[1], row[2]) for row in table.rows]
        for table in tables(PAGE)
        if table.columns == ("tag", "name", "fields", "meaning")
    }
    assert said == {
        heading: [
            (
                of.__struct_config__.tag,
                of.__name__.removeprefix("Stored").removeprefix("_"),
                ", ".join(f"`{name}`" for name in of.__struct_fields__),
            )
            for of in kinds
        ]
        for heading, kinds in TAGGED.items()
    }
    for kinds in TAGGED.values():
        assert all(of.__struct_config__.array_like for of in kinds)


def test_no_kind_is_missing_on_the_page() -> None:
    aliases = {
        "Conditions": commands.Condition,
        "Statements": commands.Statement,
    }
    for heading, alias in aliases.items():
        names = {part.strip() for part in str(alias).split("|")}
        on_page = {of.__name__.removeprefix("Stored") for of in TAGGED[heading]}
        assert on_page == names
    operations = {of.__name__ for of in get_args(commands.Operation)}
    assert operations == {of.__name__.removeprefix("Stored") for of in TAGGED["Operations"]}


def test_the_arrays_on_the_page_are_those_of_the_code() -> None:
    said = {
        table.heading: [(int(row[0]), row[1].strip("`")) for row in table.rows]
        for table in tables(PAGE)
        if table.columns[:3] == ("at", "field", "type")
    }
    assert said == {
        heading: list(enumerate(of.__struct_fields__)) for heading, of in ARRAYS.items()
    }
    assert JoinAsk.__struct_fields__ == ("node", "cluster")


def test_the_limits_and_comparisons_are_those_of_the_code() -> None:
    [limits] = [t for t in tables(PAGE) if t.columns[:2] == ("limit", "value")]
    said = {row[0].strip("`"): int(row[1]) for row in limits.rows}
    assert said == {name: getattr(commands, name) for name in said}
    assert set(said) == {name for name in vars(commands) if name.endswith(("_MAX", "DIGEST_BYTES"))}
    [compares] = [t for t in tables(PAGE) if t.columns == ("compare", "name")]
    assert [(int(row[0]), row[1]) for row in compares.rows] == [(c.value, c.name) for c in Compare]
    text = (FORMATS / PAGE).read_text()
    assert f"at most {_BLOCK:,} of either in a block" in text
    assert (FORMAT, commands.FORMAT) == (1, 1)
    assert f"## The service `{JOIN_SERVICE}`" in text
    assert f"## The service `{forwarding.SERVICE}`" in text
    assert coordinator.Left.__struct_config__.tag == 5


def test_the_note_has_the_keys_that_the_page_says() -> None:
    [note] = [t for t in tables(PAGE) if t.heading.startswith("`node`")]
    assert [row[0].strip("`") for row in note.rows] == list(Identity.__struct_fields__)
    disk = SimDisk()
    write_whole(disk, PATH, shown(PATH))
    assert load_identity(disk) == NOTE


def test_the_shown_command_is_read_and_carried_out() -> None:
    # given the command on the page
    data = shown("a command of the metastore")
    check(data)
    assert data == encode(COMMAND)
    # when it is carried out
    asked, at = decode(data)
    assert isinstance(asked, StoredInvoke)
    made = MetastoreMachine()
    made.apply(1, 1, data)
    # then its value is where the page says
    found = made.state.find(b"k")
    assert found is not None
    assert found.record.at == at
    assert isinstance(COMMAND.statement, Branch)
    then = COMMAND.statement.then
    assert isinstance(then, commands.Do)
    assert isinstance(then.operations[0], Put)
    assert data[at:] == then.operations[0].value


def test_the_shown_snapshot_is_restored_and_written_again_byte_for_byte() -> None:
    data = shown("a snapshot of the metastore")
    made = MetastoreMachine()
    made.restore([data], 1)
    assert made.state == machine().state
    assert b"".join(map(bytes, made.snapshot())) == data


@pytest.mark.parametrize(
    ("name", "value"), [("cluster", CLUSTER), ("node.2", NODE), ("topology", TOPOLOGY)]
)
def test_the_shown_values_are_read(name: str, value: object) -> None:
    read = {"cluster": decode_cluster, "node.2": decode_node, "topology": decode_topology}[name]
    assert read(shown(f"the value of {name}")) == value


def test_the_shown_record_of_a_token_is_read_and_all_its_fields_are_there() -> None:
    record = TokenRecord(digest=bytes(range(32)), ttl_ms=30 * 86_400_000, by="admin")
    data = shown("the value of access.token.job")
    assert TokenRecord.decode(data) == record
    assert record.encode() == data.strip()
    of_pass = TokenRecord(
        digest=bytes(range(32)),
        role=PASS_ROLE,
        ttl_ms=300_000,
        by="job",
        table=3,
        right=Right.READ,
        of=bytes(range(32, 64)),
    )
    data = shown(f"the value of {pass_key(of_pass.digest).decode()}")
    assert TokenRecord.decode(data) == of_pass
    assert of_pass.encode() == data.strip()
    (table,) = [one for one in tables(PAGE) if one.heading == "Tokens"]
    named = [row[0].strip("`") for row in table.rows]
    assert named == [field.name for field in msgspec.structs.fields(TokenRecord)]
