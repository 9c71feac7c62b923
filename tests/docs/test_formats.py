"""The pages in docs/formats/ say what the code does: layouts, limits, names of files."""

from __future__ import annotations

import re
import struct
from dataclasses import fields

import msgspec
import pytest

from docs.example_directory import CONFIG, Example, live_through
from docs.pages import FORMATS, LAYOUT, blocks, layouts, tables
from lowmark.backend import protocol
from lowmark.errors import LowmarkError
from lowmark.fault import FAULT_BYTES_MAX, Fault, encode_fault
from lowmark.group import clocks, envelope, rejoin, starts, wire
from lowmark.log import (
    CompactionRun,
    Damaged,
    Log,
    LogConfig,
    SnapshotMeta,
    identity,
    install,
    kept,
    large_format,
    segment_format,
    snapshot_format,
    wal_format,
)
from lowmark.log import config as log_config
from lowmark.log import entries as log_entries
from lowmark.log.errors import GroupUnwritable, ReferenceExpired
from lowmark.log.files import ENDPOINT, LEDGERS
from lowmark.log.state import RUNS_KEPT
from lowmark.log.wal_format import Kind
from lowmark.metastore import ClusterSettings, Identity, commands, identify, machine
from lowmark.node import first_token
from lowmark.node.owner import address_token
from lowmark.runtime import NetworkLimits, frames
from lowmark.runtime.network import FRAME_HEADER_BYTES
from lowmark.runtime.sim import sim_runtime
from lowmark.table import commands as table_commands
from lowmark.table import forwarding
from lowmark.table import machine as table_machine
from lowmark.tokens import Record as TokenRecord

PAGES = sorted(path.name for path in FORMATS.glob("*.md"))


# -- layouts ------------------------------------------------------------------------------------


def _row_struct() -> struct.Struct:
    codes = {2: "H", 4: "I", 8: "Q"}
    rows = segment_format.ROW
    return struct.Struct("<" + "".join(codes[rows[name].itemsize] for name in rows.names or ()))


_SUM = struct.Struct("<I")
CODE: dict[tuple[str, str], tuple[list[struct.Struct], int]] = {
    ("wal.md", "File header"): ([wal_format._FILE_HEADER, _SUM], wal_format.FILE_HEADER_BYTES),
    ("wal.md", "Batch head"): ([wal_format._BATCH_HEAD, _SUM], wal_format._HEAD_BYTES),
    ("wal.md", "Record row"): ([wal_format._ROW], wal_format.ROW_BYTES),
    ("wal.md", "Large body"): ([wal_format._LARGE, _SUM], wal_format._LARGE.size + 4),
    ("segment.md", "Header"): ([segment_format._HEADER, _SUM], segment_format.HEADER_BYTES),
    ("segment.md", "Row"): ([_row_struct()], segment_format.ROW.itemsize),
    ("segment.md", "Trailer end"): (
        [segment_format._TRAILER, _SUM],
        segment_format.TRAILER_BYTES_MIN,
    ),
    ("large.md", "Header"): ([large_format._HEADER, _SUM], large_format.HEADER_BYTES),
    ("large.md", "Frame head"): ([large_format._FRAME, _SUM], large_format.FRAME_BYTES),
    ("snapshot.md", "State head"): ([snapshot_format._HEAD, _SUM], snapshot_format.HEAD_BYTES),
    ("snapshot.md", "State trailer"): (
        [snapshot_format._TRAILER, _SUM],
        snapshot_format.TRAILER_BYTES,
    ),
    ("snapshot.md", "Live head"): ([snapshot_format._LIVE, _SUM], snapshot_format.LIVE_HEAD_BYTES),
    ("checksums.md", "Index and term"): ([log_entries._INDEX_TERM], 16),
    ("entries.md", "Command"): ([envelope._COMMAND], envelope.COMMAND_BYTES),
    ("entries.md", "Copy"): ([envelope._COPY], envelope._COPY.size),
    ("entries.md", "Version"): ([envelope._VERSION], envelope._VERSION.size),
    ("messages.md", "Start"): ([wire._LENGTH], wire._LENGTH.size),
    ("metastore.md", "Start"): ([commands._LENGTH], commands._LENGTH.size),
    ("metastore.md", "Block head"): ([machine._LENGTH], machine._LENGTH.size),
    ("table.md", "Batch"): ([table_commands._HEADER], table_commands.HEADER_BYTES),
    ("table.md", "Question"): (
        [forwarding._LINEAGE, forwarding._HEAD],
        forwarding._LINEAGE.size + forwarding._HEAD.size,
    ),
    ("table.md", "Block head"): ([table_machine._LENGTH], table_machine._LENGTH.size),
    ("frames.md", "Hello head"): ([frames._HELLO], frames._HELLO.size),
    ("flight.md", "Request head"): ([protocol._HEAD], protocol._HEAD.size),
    ("flight.md", "Place"): ([protocol._NUMBER], protocol._NUMBER.size),
    ("time.md", "The service `node.clock`"): ([clocks._ANSWER], clocks._ANSWER.size),
    ("frames.md", "Frame header"): ([frames._HEADER], FRAME_HEADER_BYTES),
}


def sizes_of(format_: struct.Struct) -> list[int]:
    """The sizes of a structure's fields, in order."""
    parts = re.findall(r"\d*s|[a-zA-Z]", format_.format.removeprefix("<"))
    return [struct.calcsize(f"<{part}") for part in parts]


def test_every_layout_on_the_pages_belongs_to_a_structure_of_the_code() -> None:
    on_pages = {(page, heading) for page in PAGES for heading in layouts(page)}
    assert on_pages == CODE.keys() | {("time.md", "Hybrid time")}


@pytest.mark.parametrize(("page", "heading"), CODE)
def test_a_layout_has_the_sizes_that_the_code_reads_and_writes(page: str, heading: str) -> None:
    # given a table, and the structures behind it
    table = layouts(page)[heading]
    structs, size = CODE[page, heading]
    sizes = [size for one in structs for size in sizes_of(one)]
    # then field for field they are of one size, and what is left over is spare
    assert [field.size for field in table[: len(sizes)]] == sizes
    assert all(field.name == "spare" for field in table[len(sizes) :])
    # and the offsets add up, to the last byte
    ends = [field.offset + field.size for field in table]
    assert [field.offset for field in table] == [0, *ends[:-1]]
    assert ends[-1] == size


def test_a_segments_row_has_the_fields_of_the_array() -> None:
    rows, table = segment_format.ROW, layouts("segment.md")["Row"]
    assert [field.name for field in table] == list(rows.names or ())
    assert rows.fields is not None
    assert [field.offset for field in table] == [rows.fields[f.name][1] for f in table]


def test_the_magics_and_versions_on_the_pages_are_those_of_the_code() -> None:
    said = {
        (page, table.heading): {
            row[2]: row[3].strip("`") for row in table.rows if row[2] in {"magic", "version"}
        }
        for page in PAGES
        for table in tables(page)
        if table.columns == LAYOUT
    }
    expected: list[tuple[str, str, bytes, int | None]] = [
        ("wal.md", "File header", wal_format.FILE_MAGIC, wal_format.VERSION),
        ("wal.md", "Batch head", wal_format.BATCH_MAGIC, None),
        ("segment.md", "Header", segment_format.MAGIC, segment_format.VERSION),
        ("segment.md", "Trailer end", segment_format.TRAILER_MAGIC, None),
        ("large.md", "Header", large_format.MAGIC, large_format.VERSION),
        ("snapshot.md", "State head", snapshot_format.STATE_MAGIC, snapshot_format.VERSION),
        ("snapshot.md", "State trailer", snapshot_format.TRAILER_MAGIC, None),
        ("snapshot.md", "Live head", snapshot_format.LIVE_MAGIC, snapshot_format.VERSION),
        ("frames.md", "Hello head", frames.MAGIC, frames.VERSION),
    ]
    for page, heading, magic, version in expected:
        want = {"magic": magic.decode()} | ({"version": str(version)} if version else {})
        assert said.pop((page, heading)) == want
    assert said.pop(("entries.md", "Version")) == {"version": "of the machine"}
    assert not any(said.values())


def test_the_kinds_of_wal_records_are_those_of_the_code() -> None:
    [table] = [t for t in tables("wal.md") if t.columns == ("kind", "name", "body")]
    assert {int(row[0]): row[1] for row in table.rows} == {k.value: k.name for k in Kind}


# -- maps and limits ----------------------------------------------------------------------------

MAPS: dict[tuple[str, str], type[msgspec.Struct]] = {
    ("snapshot.md", "State head"): SnapshotMeta,
    ("group.md", "`group`: the identity"): identity._Identity,
    ("group.md", "`runs`"): CompactionRun,
    ("wal.md", "The note beside a file"): kept._KeptNote,
    ("group.md", "`installing/` and `installed/`"): install._Plan,
    ("entries.md", "The note of a lost copy"): rejoin.Lost,
    ("entries.md", "The note of starts"): starts.StartsNote,
    ("metastore.md", "`node`: who a node is"): Identity,
    ("metastore.md", "Tokens"): TokenRecord,
    ("errors.md", "Errors on the wire"): Fault,
}


def test_the_keys_of_json_and_messagepack_are_those_of_the_code() -> None:
    # given all tables of keys
    said = {
        (page, table.heading): [(row[0].strip("`"), row[1]) for row in table.rows]
        for page in PAGES
        for table in tables(page)
        if table.columns[:2] == ("key", "type")
    }
    # then each belongs to a structure, and has its fields
    names: dict[object, str] = {
        int: "int",
        str: "str",
        str | None: "str or null",
        bytes: "bin",
        bool: "bool",
        tuple[int, ...]: "array of int",
        list[kept._Group]: "list",
        dict[str, str]: "object",
        dict[str, starts.Start]: "object",
        ClusterSettings | None: "object",
        dict[str, bool | int | str]: "object",
        dict[str, bool | tuple[int | str, ...] | None]: "object",
    }
    assert said == {
        where: [(f.encode_name, names[f.type]) for f in msgspec.structs.fields(of)]
        for where, of in MAPS.items()
    }


def test_the_errors_on_the_page_are_those_that_the_code_writes() -> None:
    errors = [
        ReferenceExpired("7"),
        GroupUnwritable("orders", folder="groups/orders", cause="no permission"),
    ]
    assert [block.text.strip().encode() for block in blocks("errors.md")] == [
        encode_fault(error) for error in errors
    ]
    assert f"{FAULT_BYTES_MAX:,} bytes" in " ".join((FORMATS / "errors.md").read_text().split())


def test_the_limits_of_the_log_are_those_of_its_settings() -> None:
    found = 0
    for page in PAGES:
        for table in tables(page):
            if table.columns[:4] == ("limit", "default", "from", "to"):
                for name, *numbers in (row[:4] for row in table.rows):
                    setting = name.strip("`").removeprefix("log.")
                    default = getattr(LogConfig(), setting)
                    expected = [default, *log_config._BOUNDS[setting]]
                    assert [int(number) for number in numbers] == expected
                    found += 1
    assert found


def test_the_limits_of_the_network_are_all_there() -> None:
    [table] = [t for t in tables("frames.md") if t.columns[:2] == ("limit", "default")]
    said = {row[0].strip("`").removeprefix("network."): int(row[1]) for row in table.rows}
    limits = NetworkLimits()
    assert said == {field.name: getattr(limits, field.name) for field in fields(limits)}


def test_the_other_limits_are_those_of_the_code() -> None:
    [table] = [t for t in tables("snapshot.md") if t.columns == ("what", "limit")]
    assert f"{snapshot_format.META_BYTES_MAX} bytes" in table.rows[0]
    assert f"The last {RUNS_KEPT} runs" in (FORMATS / "group.md").read_text()


# -- the directory ------------------------------------------------------------------------------

_PARTS = {
    "<number>": r"\d{16}",
    "<numbers>": r"\d{16}(-\d{16})*",
    "<index>": "[0-9a-f]{16}",
    "<term>": "[0-9a-f]{16}",
    "<group>": "[a-z0-9][a-z0-9._-]*",
    "<incarnation>": "[0-9a-f]{32}",
    "<token>": "[0-9a-f]{8}",
}


def _patterns() -> list[str]:
    [table] = [t for t in tables("directory.md") if t.columns[0] == "path"]
    found = []
    for row in table.rows:
        pattern = re.escape(row[0].strip("`"))
        for name, part in _PARTS.items():
            pattern = pattern.replace(re.escape(name), part)
        found.append(pattern)
    return found


def _names_of_a_long_life() -> set[str]:
    """Every path that there ever was while a log did all that a log does."""
    example = Example()
    seen: set[str] = set()
    example.disk.before_call = lambda *_: seen.update(example.disk.tree())
    copies = example.log.create_group("copies")
    live_through(example, close=False)
    sender = example.group.open_sender("copies", last_applied=0)
    installer = copies.begin_install(sender.meta, last_applied=0)
    installer.add_entries(*sender.entries())
    installer.add_state(0, sender.state(0, sender.state_bytes))
    ended: list[LowmarkError | None] = []
    installer.finish(sender.needed, ended.append)
    example.wait(lambda: bool(ended))
    assert ended == [None]
    example.log.quarantine(copies.state, Damaged("a file", offset=0, what="a test wanted it"))
    example.settle()
    # A folder that can't be written for a while: a note beside its WAL file, and a quarantine
    # that is written down elsewhere.
    sick = example.log.create_group("sick")
    sick.append(1, [b"only in the WAL"])
    example.wait(lambda: sick.written_index == 1)
    example.disk.go_bad("unwritable", "groups/sick")
    example.log.roll()
    example.wait(lambda: bool(example.log.segment_writer.kept))
    example.log.quarantine(sick.state, Damaged("a file", offset=0, what="a test wanted it"))
    example.wait(lambda: sick.state.quarantine_saved)
    example.disk.heal()
    example.settle()
    rejoin.note_lost(example.disk, "copies", incarnation=0, ask=(2, 3))
    starts.Starts(example.disk, node=1, draw=lambda: 1).count()
    example.disk.flip_bit(starts.PATH, 40)
    starts.Starts(example.disk, node=1, draw=lambda: 1).count()
    identify(example.disk, draw=lambda _: 0)
    example.disk.make_dir(LEDGERS)  # as the first run of compaction does
    # As the owner of a directory does; a simulated disk has no sockets.
    example.disk.make_dir(ENDPOINT)
    example.disk.open(f"{ENDPOINT}/{address_token()}", "create").close()
    first_token.write_new(example.disk)
    example.disk.rename(first_token.NEW, first_token.PATH)  # as when it is in force
    example.log.delete_group("sick")
    example.settle()
    example.log.delete_group("copies")
    example.log.close()
    wal = next(path for path in example.disk.tree() if path.endswith(".wal"))
    example.disk.flip_bit(wal, 8 * wal_format.FILE_HEADER_BYTES)
    runtime = sim_runtime(2, disk=example.disk)
    log = Log.open(runtime, CONFIG)
    runtime.loop.run_until(lambda: log.idle)
    log.close()
    seen |= set(example.disk.tree())
    # What lies in a folder that is on its way out has the names that it always had.
    return {path for path in seen if not re.fullmatch("groups/~.*/.+", path)}


def test_the_page_of_the_directory_names_every_file_that_is_ever_made() -> None:
    # given a log that does everything it can do, and a group that gives up a copy
    seen = _names_of_a_long_life()
    # then each name is on the page
    patterns = _patterns()
    unknown = [path for path in seen if not any(re.fullmatch(p, path) for p in patterns)]
    assert unknown == []
    # and each name on the page was there at some time
    never = [p for p in patterns if not any(re.fullmatch(p, path) for path in seen)]
    assert never == []


def test_the_tree_on_the_page_is_the_directory_of_the_examples() -> None:
    # given the tree as it is drawn, a level per four spaces
    text = blocks("directory.md")[0].text
    drawn, folders = [], list[str]()
    for line in text.splitlines():
        depth = (len(line) - len(line.lstrip())) // 4
        name = line.strip().partition(" -> ")[0]
        folders = [*folders[:depth], name]
        drawn.append("".join(folders))
    # then it is what the log left behind
    assert sorted(drawn) == live_through(Example()).tree()


# -- the pages themselves -----------------------------------------------------------------------


def test_the_index_lists_every_page_and_no_link_leads_nowhere() -> None:
    text = {page: (FORMATS / page).read_text() for page in PAGES}
    listed = set(re.findall(r"\]\(([\w.]+)\)", text["README.md"]))
    assert listed == set(PAGES) - {"README.md"}
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", text[page]):
            assert (FORMATS / target).exists(), f"{page} links to {target}"


def test_every_module_that_points_to_a_page_finds_it() -> None:
    source = FORMATS.parents[1] / "src"
    named = {
        name
        for path in source.rglob("*.py")
        for name in re.findall(r"docs/formats/([\w.]+\.md)", path.read_text())
    }
    assert named
    assert named <= set(PAGES)
