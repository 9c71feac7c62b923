"""The page on ledgers has every field, its digest can be recomputed from what it says, and its
queries come to the table's own state, without any code of Lowmark's.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c

import lowmark
from docs.example_ledger import CLAIM, DONE, HASHES, MANIFEST, POINTER, RETIRED, ROWS, RUN, Row
from docs.pages import FORMATS, blocks, tables
from inside import backend_of
from lowmark.client import Database, Table
from lowmark.compaction.claims import HeldClaim
from lowmark.compaction.records import _FINISHED_KEPT
from lowmark.compaction.run import _LOOK_S
from lowmark.errors import Rejected
from lowmark.inspect import verify_log
from lowmark.ledger import (
    Claim,
    Done,
    LedgerDamaged,
    LedgerFile,
    Lost,
    Manifest,
    PartitionPlan,
    Pointer,
    Retired,
    RunRecord,
    decode_record,
    files,
    pointer_key,
    retired_key,
    run_key,
    work,
)
from lowmark.ledger.manifest import Layout, LedgerColumn, decode_manifest, encode_manifest
from lowmark.log.files import LEDGERS
from lowmark.node import load_settings
from lowmark.runtime import RealDisk
from lowmark.spark import SparkRunner
from lowmark.table.hashing import hash64_one

PAGE = "ledger.md"
TEXT = (FORMATS / PAGE).read_text()
STRUCTS: dict[str, type[msgspec.Struct]] = {
    "Manifest fields": Manifest,
    "File fields": LedgerFile,
    "Layout fields": Layout,
    "Column fields": LedgerColumn,
    "Lost fields": Lost,
    "Done": Done,
    "Pointer": Pointer,
    "Retired": Retired,
    "RunRecord": RunRecord,
    "PartitionPlan": PartitionPlan,
    "Claim": Claim,
}
VALUES: dict[bytes, msgspec.Struct] = {
    pointer_key(3, 0): POINTER,
    retired_key(3, 0, 1): RETIRED,
    run_key(3, RUN.run): RUN,
    HeldClaim(3, CLAIM).key: CLAIM,
}


def shown(info: str, language: str | None = None) -> str:
    [text] = [
        block.text
        for block in blocks(PAGE)
        if block.info == info and language in {None, block.language}
    ]
    return text


# -- what the tables say ------------------------------------------------------------------------


def test_the_page_has_every_field_in_order() -> None:
    said = {
        table.heading: tuple(row[0].strip("`") for row in table.rows)
        for table in tables(PAGE)
        if table.columns[0] == "field"
    }
    assert said == {name: of.__struct_encode_fields__ for name, of in STRUCTS.items()}


def test_the_defaults_on_the_page_are_those_of_the_code() -> None:
    words: dict[str, object] = {
        "0": 0,
        "empty": "",
        "none": (),
        "16 zero bytes": base64.b64encode(bytes(16)).decode(),
    }
    words |= {"null": None, "false": False}
    for heading in ("Manifest fields", "File fields", "Column fields", "Lost fields"):
        [table] = [one for one in tables(PAGE) if one.heading == heading]
        said = {row[0].strip("`"): row[2] for row in table.rows if row[2]}
        known = {
            field.name: field.default
            for field in msgspec.structs.fields(STRUCTS[heading])
            if not field.required and field.name != "format"
        }
        assert {name: words[text] for name, text in said.items()} == known


def test_the_system_columns_are_those_of_the_code() -> None:
    [table] = [one for one in tables(PAGE) if one.columns[:2] == ("column", "Parquet type")]
    said = {row[0].strip("`"): int(row[2]) for row in table.rows[1:]}
    assert said == files.SYSTEM_IDS


def test_the_sizes_and_times_on_the_page_are_those_of_the_code() -> None:
    assert f"{files.ROW_GROUP_ROWS} rows or {files.ROW_GROUP_BYTES >> 20} MiB" in TEXT
    assert f"when it has {work.FILE_ROWS_MAX} rows" in TEXT
    assert f"when {_FINISHED_KEPT} newer runs of the table are over" in TEXT
    assert _LOOK_S == 1 / 4
    assert "four times a second" in TEXT


@pytest.mark.parametrize("key", VALUES)
def test_the_shown_values_are_what_the_metastore_has(key: bytes) -> None:
    value = VALUES[key]
    data = shown(f"the value of {key.decode()}").strip().encode()
    assert data == msgspec.json.encode(value)
    assert decode_record(data, type(value)) == value
    assert f"`{re.sub(r'[0-9].*', '<table>', key.decode())}" in TEXT


def test_rows_that_are_too_young_keep_the_name_that_stored_records_have() -> None:
    stored = b'{"partition":3,"held_rows":7}'
    plan = msgspec.json.decode(stored, type=PartitionPlan)
    assert plan.too_young_rows == 7
    assert msgspec.json.encode(plan) == stored


def test_the_shown_answer_is_what_a_partition_writes() -> None:
    data = shown("the answer of a partition").strip()
    assert data.encode() == msgspec.json.encode(DONE)
    assert tuple(json.loads(data)) == Done.__struct_fields__


# -- manifests ----------------------------------------------------------------------------------


def test_the_shown_manifest_is_read_and_written_again_byte_for_byte() -> None:
    data = shown("a manifest").encode()
    assert decode_manifest(data, path="the page") == MANIFEST
    assert encode_manifest(MANIFEST) == data
    # and the line at its end is what the page says
    body, mark, tail = data.rpartition(b"# crc32c ")
    assert tail == b"%08x\n" % crc32c(body)
    assert json.loads(body)["format"] == 1
    assert mark


@pytest.mark.parametrize("what", ["a bit", "half of it", "another format", "no format"])
def test_a_manifest_that_fails_a_check_of_the_page_is_refused(what: str) -> None:
    data = shown("a manifest").encode()
    body = data.rpartition(b"# crc32c ")[0]
    new = {
        "another format": body.replace(b'"format": 1', b'"format": 2'),
        "no format": body.replace(b'"format": 1,', b""),
    }
    bad = {"a bit": data.replace(b"orders", b"orderS"), "half of it": data[: len(data) // 2]}
    bad |= {name: text + b"# crc32c %08x\n" % crc32c(text) for name, text in new.items()}
    with pytest.raises(LedgerDamaged) as refused:
        decode_manifest(bad[what], path="the page")
    assert ("format" in refused.value.message) == (what in new)


def test_a_manifest_from_before_columns_were_in_it_is_still_read() -> None:
    # given one as it was written when manifests had no layouts
    before = json.loads(shown("a manifest").rpartition("# crc32c ")[0])
    del before["layouts"]
    body = json.dumps(before, indent=1).encode() + b"\n"
    # then it says the same, but for that
    found = decode_manifest(body + b"# crc32c %08x\n" % crc32c(body), path="the page")
    assert found == msgspec.structs.replace(MANIFEST, layouts=())


def test_a_field_that_is_not_known_is_passed_over() -> None:
    body = shown("a manifest").encode().rpartition(b"# crc32c ")[0]
    more = body.replace(b'"format": 1,', b'"format": 1,\n "later": [1],')
    assert decode_manifest(more + b"# crc32c %08x\n" % crc32c(more), path="") == MANIFEST


def rows_in(text: str) -> list[int]:
    """A set of rows as the page takes one apart: arrays of 16 bits only."""
    data = base64.b64decode(text)
    if not data:
        return []
    cookie, count = struct.unpack_from("<II", data)
    assert cookie == 12_346
    found: list[int] = []
    at = 8 + 8 * count
    for number in range(count):
        upper, less_one = struct.unpack_from("<HH", data, 8 + 4 * number)
        assert struct.unpack_from("<I", data, 8 + 4 * count + 4 * number) == (at,)
        values = struct.unpack_from(f"<{less_one + 1}H", data, at)
        found += [upper << 16 | value for value in values]
        at += 2 * len(values)
    assert at == len(data)
    return found


def test_the_shown_sets_are_what_the_page_says() -> None:
    [file] = MANIFEST.files
    assert f"`{file.dead}` is `3a 30 00 00`" in TEXT
    assert (rows_in(file.dead), rows_in(file.deletes)) == ([1], [2])


# -- digests, by a program that has nothing but the page ----------------------------------------

ONES = (1 << 64) - 1


def hashing() -> Any:
    """The function that the page shows."""
    found: dict[str, Any] = {}
    exec(shown("hash64"), found)  # noqa: S102
    return found["hash64"]


hash64 = hashing()


def long(value: int, seed: int) -> int:
    return int(hash64((value & ONES).to_bytes(8, "little"), seed))


def value_hash(value: Any, kind: pa.DataType, seed: int) -> int:
    """`V` of the page."""
    if pa.types.is_string(kind):
        return int(hash64(value.encode(), seed))
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return int(hash64(value, seed))
    if pa.types.is_decimal(kind):
        digits = int(value.scaleb(kind.scale))
        return long(long(digits, seed) ^ digits >> 64 & ONES, seed)
    if pa.types.is_floating(kind):
        [bits] = struct.unpack("<q", struct.pack("<d", value))
        return long(bits, seed)
    if pa.types.is_struct(kind):
        state = long(seed, 0x1E46)
        for at, field in enumerate(kind):
            child = value[field.name]
            inner = 0 if child is None else value_hash(child, field.type, at)
            state += long(inner, 0x91ACE + at)
        return long(state, seed)
    if pa.types.is_map(kind):
        pair = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return elements([{"key": key, "value": item} for key, item in value], pair, seed)
    if pa.types.is_list(kind):
        return elements(value, kind.value_type, seed)
    return long(value, seed)


def elements(values: Sequence[Any], kind: pa.DataType, seed: int) -> int:
    state = long(len(values), 0x1E46)
    for place, value in enumerate(values):
        inner = 0x4011 if value is None else value_hash(value, kind, 0x91ACE)
        state += long(inner ^ long(place, 0x91ACE), seed)
    return long(state, seed)


def row_hash(row: Row, kinds: Mapping[int, pa.DataType]) -> int:
    offset, delete, values = row
    state = long(offset, 0x0FF5E7)
    if delete:
        state ^= 0xDE1E7E
    for column, value in values.items():
        if value is not None:
            state += value_hash(value, kinds[column], column)
    return long(state, 0x0DD5)


def digest(hashes: Sequence[int]) -> bytes:
    mixed = 0
    for one in hashes:
        mixed ^= one
    return struct.pack("<QQ", sum(hashes) & ONES, mixed)


def test_the_shown_hash_is_that_of_the_code() -> None:
    for data in (b"", b"a", b"eight by", b"nine byte", bytes(range(200))):
        for seed in (0, 1, 0x91ACE, ONES):
            assert hash64(data, seed) == hash64_one(data, seed)


def test_the_shown_digest_is_recomputed_from_what_the_page_says() -> None:
    # given the rows on the page
    [table] = [one for one in tables(PAGE) if one.heading == "Example of a digest"]
    said: list[Row] = [
        (
            int(offset),
            change == "delete",
            {1: name, 3: None if amount == "null" else Decimal(amount)},
        )
        for offset, change, name, amount, _ in table.rows
    ]
    # when they are hashed
    hashes = [row_hash(row, {1: pa.string(), 3: pa.decimal128(12, 2)}) for row in said]
    # then each has the hash that the page has, and so has all of it
    assert [f"`{one:016x}`" for one in hashes] == [row[4] for row in table.rows]
    whole = digest(hashes)
    assert f"`{whole.hex(' ')}`" in TEXT
    assert base64.b64encode(whole).decode() == MANIFEST.digest
    # and the code says the same
    assert hashes == HASHES.tolist()
    assert len(ROWS) == len(said)


# -- a ledger with everything in it -------------------------------------------------------------

COLUMNS = {
    "id": "int64",
    "flag": "bool",
    "small": "int8",
    "half": "float32",
    "whole": "float64",
    "name": "string",
    "raw": "binary",
    "token": "uuid",
    "day": "date",
    "at": "timestamp",
    "price": "decimal(20,3)",
    "tags": "list<string>",
    "counts": "map<string, int32>",
    "place": "struct<x: int32, names: list<string>>",
}


def rows_of_every_type() -> list[dict[str, Any]]:
    full = {
        "flag": True,
        "small": -7,
        "half": 0.1,
        "whole": -0.0,
        "name": "Málaga",
        "raw": b"\x00\xff" * 9,
        "token": b"0123456789abcdef",
        "day": "2026-07-01",
        "at": "2026-07-01T12:00:00.000001Z",
        "price": Decimal("-12345678901234567.891"),
        "tags": ["a", None, "", "bb"],
        "counts": {"x": 1, "y": None},
        "place": {"x": None, "names": ["n", None]},
    }
    empty = {"name": "", "tags": [], "counts": {}, "place": {"x": 1, "names": None}}
    return [{"id": 1, **full}, {"id": 2}, {"id": 3, **empty}, {"id": -4, **full}]


def settle(db: Database, table: Table) -> None:
    """Compact all that is there."""
    db.advance_watermark(table.snapshot().time)
    done = table.compact(engine="local", verify=True)
    assert (done.state, done.too_young_rows) == ("done", 0)


def test_the_digest_of_a_real_ledger_is_recomputed_from_its_files_and_the_page(
    tmp_path: Path,
) -> None:
    # given a table with columns of every type, and a row of it that has died since
    with lowmark.open(tmp_path / "db") as db:
        table = db.create_table("all", COLUMNS, key="id", partitions=1)
        table.append(rows_of_every_type())
        table.cursors.create("reader", kind="compacted")
        settle(db, table)
        table.delete([2])
        settle(db, table)
        [ledger] = table.ledgers()
    # when its manifest is read as JSON, and its files as Parquet
    body, _, _ = Path(ledger.location).read_text().rpartition("# crc32c ")
    manifest = json.loads(body)
    live: list[int] = []
    for file in manifest["files"]:
        path = tmp_path / "db" / LEDGERS / file["path"]
        rows = pq.read_table(path)
        hashes = hashes_of(rows)
        dead = rows_in(file.get("dead", ""))
        # then everything that is said of a file is so
        alive = [one for at, one in enumerate(hashes) if at not in dead]
        assert base64.b64encode(digest(alive)).decode() == file["digest"]
        assert len(dead) == file.get("dead_rows", 0)
        deletes = [at for at, word in enumerate(rows["_change"].to_pylist()) if word == "delete"]
        assert rows_in(file.get("deletes", "")) == deletes
        check_bytes(path, file)
        check_index(path.with_suffix(".keys"), file, rows, hashes)
        live += alive
    # and of the whole; and whoever looks at the log takes none of it for a stranger's
    assert list(verify_log(RealDisk(str(tmp_path / "db"), create=False))) == []
    assert base64.b64encode(digest(live)).decode() == manifest["digest"]
    assert [file.get("dead_rows", 0) for file in manifest["files"]] == [1, 0]


def hashes_of(rows: pa.Table) -> list[int]:
    """Of each row of a file: columns are told by their field ids."""
    ids = {
        field.name: int(field.metadata[b"PARQUET:field_id"])
        for field in rows.schema
        if field.name not in files.SYSTEM_IDS
    }
    kinds = {ids[name]: rows.schema.field(name).type for name in ids}
    plain = {name: plain_values(rows[name]) for name in ids}
    return [
        row_hash(
            (offset, change == "delete", {ids[name]: plain[name][at] for name in ids}),
            kinds,
        )
        for at, (offset, change) in enumerate(
            zip(rows["_offset"].to_pylist(), rows["_change"].to_pylist(), strict=True)
        )
    ]


def plain_values(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if pa.types.is_date32(kind):
        return list(column.cast(pa.int32()).to_pylist())
    if pa.types.is_timestamp(kind):
        return list(column.cast(pa.int64()).to_pylist())
    return list(column.to_pylist())


def check_bytes(path: Path, file: Mapping[str, Any]) -> None:
    """Checksums of a file, its footer and its chunks; how it is encoded."""
    data, meta = path.read_bytes(), pq.read_metadata(path)
    stored = meta.schema.to_arrow_schema()
    assert (len(data), crc32c(data)) == (file["bytes"], file["checksum"])
    assert crc32c(data[-file["footer_bytes"] :]) == file["footer_checksum"]
    assert data[-4:] == b"PAR1"
    assert int.from_bytes(data[-8:-4], "little") + 8 == file["footer_bytes"]
    found = []
    for group in range(meta.num_row_groups):
        for at in range(meta.num_columns):
            chunk = meta.row_group(group).column(at)
            begin = chunk.dictionary_page_offset or chunk.data_page_offset
            found.append(crc32c(data[begin : begin + chunk.total_compressed_size]))
            name = chunk.path_in_schema
            packed = {"ZSTD"} if "." in name else {"ZSTD", "UNCOMPRESSED"}
            assert chunk.compression in packed
            assert ("DELTA_BINARY_PACKED" in chunk.encodings) == (name in {"_offset", "_time"})
            assert chunk.has_dictionary_page == (name == "_change")
            kind = stored.field(name).type if name in stored.names else None
            numbers = (pa.types.is_integer, pa.types.is_temporal, pa.types.is_boolean)
            assert chunk.is_stats_set == (kind is not None and any(one(kind) for one in numbers))
    assert base64.b64decode(file["chunks"]) == struct.pack(f"<{len(found)}I", *found)
    assert meta.format_version == "2.6"
    assert meta.metadata is None  # Arrow's own schema would stand there


def check_index(path: Path, file: Mapping[str, Any], rows: pa.Table, hashes: list[int]) -> None:
    data = path.read_bytes()
    assert (len(data), crc32c(data)) == (file["keys_bytes"], file["keys_checksum"])
    [table] = [one for one in tables(PAGE) if one.heading == "Key index"]
    with pa.ipc.open_file(data) as opened:
        assert opened.num_record_batches == 1
        index = opened.get_batch(0)
    assert index.schema.names == [row[0].strip("`") for row in table.rows]
    keys, places = index["key"].to_pylist(), index["row"].to_pylist()
    assert (
        index["hash"].to_pylist()
        == [long(key, 0) for key in keys]
        == sorted(index["hash"].to_pylist())
    )
    assert keys == [rows["id"][place].as_py() for place in places]
    assert index["digest"].to_pylist() == [hashes[place] for place in places]


# -- the store ----------------------------------------------------------------------------------

_NAMES = {
    "<table>": r"\d+",
    "<partition>": r"\d+",
    "<epoch>": r"\d+",
    "<n>": r"\d+",
    "<run>": r"\d{8}T\d{6}-[0-9a-f]{6}",
    "<token>": r"\d{8}T\d{6}-[0-9a-f]{6}-[0-9a-f]{8}",
}


def patterns() -> list[str]:
    [table] = [one for one in tables(PAGE) if one.columns[0] == "path"]
    found = []
    for row in table.rows:
        pattern = re.escape(row[0].strip("`"))
        for name, part in _NAMES.items():
            pattern = pattern.replace(re.escape(name), part)
        found.append(pattern)
    return found


@pytest.mark.slow
def test_every_name_in_a_store_is_on_the_page(tmp_path: Path) -> None:
    store, seen = tmp_path / "store", set[str]()

    def look(_: object) -> None:
        found = [path for path in store.rglob("*") if path.is_file()]
        # What is not finished has the name that it will have, and an ending.
        seen.update(str(path.relative_to(store)).removesuffix(".tmp") for path in found)

    # given ledgers at a place of their own
    settings = load_settings(arguments={"ledger": {"location": str(store)}})
    with lowmark.open(tmp_path / "db", settings=settings) as db:
        table = db.create_table("t", {"id": "int64", "v": "binary"}, key="id", partitions=2)
        table.append([{"id": at, "v": bytes(4 << 10)} for at in range(200)])
        db.advance_watermark(table.snapshot().time)
        # when a run goes on so slowly that it says how far it is, and is looked at all the time
        run = table.compact(engine="local", read_rate=500_000, progress=look, step=look)
        look(None)
        # and an index of keys is lost, and made again
        next(store.rglob("*.keys")).unlink()
        table.rebuild_ledger(step=look)
        owner = (store / "database").read_text()
        assert owner == f"{backend_of(db).node.cluster.settings.id}\n"
    seen.add(f"table-3/runs/{run.run}/cancel")  # which `lowmark runs cancel` leaves there
    seen.add("table-3/")
    # then every name that was ever seen is on the page, and the other way round
    known = patterns()
    assert [name for name in sorted(seen) if not any(re.fullmatch(p, name) for p in known)] == []
    assert [p for p in known if not any(re.fullmatch(p, name) for name in seen)] == []
    # and another database is refused there
    with pytest.raises(Rejected, match="ledgers of another database"):
        lowmark.open(tmp_path / "other", settings=settings)


# -- the query ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[Any, ...]]]:
    """A folder with a database `shop`, compacted thrice, and the state that the table has itself.

    A reader keeps deletes; rows are dead in older files, and files of older ledgers lie there, too.
    """
    folder = tmp_path_factory.mktemp("query")
    with lowmark.open(folder / "shop") as db:
        columns = {"id": "string", "status": "string", "amount": "decimal(12,2)"}
        orders = db.create_table("orders", columns, key="id", partitions=3)
        assert orders.descriptor.id == 3
        orders.append([{"id": f"o-{at}", "status": "new", "amount": at} for at in range(600)])
        settle(db, orders)
        orders.cursors.create("search", kind="compacted", start="latest")
        orders.append([{"id": f"o-{at}", "status": "paid"} for at in range(600) if at % 3])
        orders.delete([f"o-{at}" for at in range(0, 600, 10)])
        settle(db, orders)
        orders.delete([f"o-{at}" for at in range(5, 600, 10)])
        orders.append([{"id": "o-10", "status": "back", "amount": "1.10"}, {"id": "o-999"}])
        settle(db, orders)
        state = rows_as_set(orders.read(as_of="now").to_arrow())
        manifests = [ledger.manifest for ledger in orders.ledgers()]
    # given files with dead rows and deletes, and more Parquet files than the manifests name
    assert all(one is not None and one.rows > one.live_rows for one in manifests)
    assert any(file.deletes for one in manifests if one is not None for file in one.files)
    assert len(state) == 600 - 120 + 2
    return folder, state


def rows_as_set(table: pa.Table) -> list[tuple[Any, ...]]:
    columns = table.select(["id", "status", "amount"])
    return sorted(tuple(row.values()) for row in columns.to_pylist())


def run_on(folder: Path, *infos: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What blocks of the page come to, one after another, in a folder."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    for info in infos:
        exec(shown(info, "python"), names)  # noqa: S102
    return names


@pytest.fixture
def of_lowmark(shop: tuple[Path, list[tuple[Any, ...]]]) -> None:
    """The list of files, as the page has Lowmark write it."""
    folder, _ = shop
    if not (folder / "ledgers.json").exists():
        script = f'lowmark() {{ {sys.executable} -m lowmark "$@"; }}\n'
        script += shown("files by Lowmark", "sh")
        subprocess.run(["sh", "-ec", script], cwd=folder, check=True)


@pytest.mark.slow
@pytest.mark.usefixtures("of_lowmark")
def test_both_ways_to_find_the_files_give_the_same(
    shop: tuple[Path, list[tuple[Any, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = shop
    said = run_on(folder, "files by Lowmark", monkeypatch=monkeypatch)["files"]
    found = run_on(folder, "files without Lowmark", monkeypatch=monkeypatch)["files"]
    assert [(schema, Path(path).resolve()) for schema, path in said] == [
        (schema, Path(path).resolve()) for schema, path in found
    ]
    # and not all that lie there are among them
    assert len(set(found)) < len(list(folder.rglob("*.parquet")))


def test_the_query_by_duckdb_comes_to_the_table_s_own_state(
    shop: tuple[Path, list[tuple[Any, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, state = shop
    infos = ("files without Lowmark", "columns by their ids", "query by DuckDB")
    assert rows_as_set(run_on(folder, *infos, monkeypatch=monkeypatch)["state"]) == state


@pytest.mark.slow
@pytest.mark.usefixtures("of_lowmark")
def test_the_query_by_polars_comes_to_the_table_s_own_state(
    shop: tuple[Path, list[tuple[Any, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, state = shop
    infos = ("files by Lowmark", "columns by their ids", "query by Polars")
    assert rows_as_set(run_on(folder, *infos, monkeypatch=monkeypatch)["state"].to_arrow()) == state


@pytest.mark.slow
@pytest.mark.release  # DuckDB and Polars run queries of the same form, above
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_the_query_by_spark_comes_to_the_table_s_own_state(
    shop: tuple[Path, list[tuple[Any, ...]]],
    shared: SparkRunner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a Spark session, which the query finds by itself
    folder, state = shop
    infos = ("files without Lowmark", "columns by their ids", "query by Spark")
    found = run_on(folder, *infos, monkeypatch=monkeypatch)["state"]
    rows = sorted((row["id"], row["status"], row["amount"]) for row in found.collect())
    assert rows == state
