"""The examples in docs/formats/ are real: the real decoders read them, and write them again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from crc32c import crc32c
from pyroaring import BitMap64

from docs.annotate import HYBRID_TIME, example_bytes, rendered
from docs.example_directory import ENTRIES, GROUP, LIVE, SNAPSHOT, STATE, VOTE
from docs.pages import FORMATS, blocks, hex_lines, layouts, tables
from lowmark.inspect import verify_log
from lowmark.log import (
    CompactionRun,
    Damaged,
    Log,
    identity,
    install,
    large_format,
    segment_format,
    snapshot_format,
    snapshots,
    wal_format,
    wal_recovery,
)
from lowmark.log import entries as log_entries
from lowmark.log.entries import Run, entry_checksum, fold_checksums
from lowmark.log.wal_format import Record
from lowmark.runtime import (
    ClockSkew,
    HybridClock,
    HybridTime,
    NetworkLimits,
    frames,
    millis_of,
)
from lowmark.runtime.sim import SimDisk, sim_runtime

PAGES = sorted(path.name for path in FORMATS.glob("*.md"))
INCARNATION = bytes(range(0xA0, 0xB0))
SNAPSHOT_FOLDER = f"groups/{GROUP}/snapshots/0000000000000004-0000000000000001"


def shown(path: str) -> bytes:
    """The bytes of an example, read from its page."""
    [text] = [b.text for page in PAGES for b in blocks(page) if b.info == path]
    if any(b.info == path and b.language == "hex" for page in PAGES for b in blocks(page)):
        return b"".join(data for _, data, _ in hex_lines(text))
    return text.encode()


def numbers(page: str, heading: str, data: bytes, at: int) -> dict[str, int]:
    """The fields of a structure as its table has them."""
    return {
        field.name: int.from_bytes(data[at + field.offset :][: field.size], "little")
        for field in layouts(page)[heading]
    }


def file_of(data: bytes) -> tuple[SimDisk, str]:
    """A file with these bytes, alone on a disk."""
    disk = SimDisk()
    file = disk.open("example", "create")
    file.append([data])
    file.close()
    return disk, "example"


# -- the examples -------------------------------------------------------------------------------

HEX = [(page, b.info) for page in PAGES for b in blocks(page) if b.language == "hex"]


def test_every_file_of_the_directory_is_shown_on_a_page() -> None:
    on_pages = {block.info for page in PAGES for block in blocks(page)}
    assert example_bytes().keys() <= on_pages


@pytest.mark.parametrize(("page", "name"), HEX)
def test_an_example_is_what_the_log_writes(page: str, name: str) -> None:
    [block] = [b for b in blocks(page) if b.info == name]
    assert b"".join(data for _, data, _ in hex_lines(block.text)) == example_bytes()[name]
    assert block.text == rendered(page, name), "run: python tests/docs/annotate.py"


@pytest.mark.parametrize(("page", "name"), HEX)
def test_what_is_said_of_the_bytes_is_true(page: str, name: str) -> None:
    [block] = [b for b in blocks(page) if b.info == name]
    at = 0
    for offset, data, said in hex_lines(block.text):
        assert offset == at
        at += len(data)
        _, is_said, value = said.partition(" = ")
        if value.startswith('"'):
            assert value == f'"{data.decode()}"'
        elif is_said:
            assert int(value, 0) == int.from_bytes(data, "little")


def test_the_shown_wal_is_decoded_and_written_again_byte_for_byte() -> None:
    # given the file on the page
    path = "wal/0000000000000004.wal"
    data = shown(path)
    header = wal_format.decode_header(path, data)
    # when its batches are read with the real decoder, and encoded again
    again, sequence, records = wal_format.encode_header(header), 0, list[Record]()
    while len(again) < len(data):
        batch = wal_format.decode_batch(
            memoryview(data), len(again), number=header.number, sequence=sequence
        )
        assert batch is not None
        sound = [record for record in batch.records if isinstance(record, Record)]
        assert len(sound) == len(batch.records)
        again += b"".join(wal_format.encode_batch(header.number, sequence, sound))
        records += sound
        sequence += 1
    # then they are the same, and they say what the page says
    assert again == data
    writer, meta, run, large = records
    assert wal_format.decode_writer(writer) == (INCARNATION, GROUP)
    assert bytes(meta.body[0]) == VOTE
    entries = wal_format.decode_run(run).entries(7, 8)
    assert [(e.index, bytes(e.data)) for e in entries] == [(i, ENTRIES[i][1]) for i in (7, 8)]
    named = wal_format.decode_run(large)
    assert named.large is not None
    assert (named.first, named.large.number, named.large.offset) == (9, 2, 0x48)


@pytest.mark.parametrize(("number", "indexes", "members"), [(1, LIVE, [1, 2]), (3, [5, 6], [3])])
def test_a_shown_segment_is_decoded_and_written_again_byte_for_byte(
    number: int, indexes: list[int], members: list[int]
) -> None:
    # given the file on the page
    data = shown(f"groups/{GROUP}/{number:016d}.segment")
    disk, path = file_of(data)
    file = disk.open(path, "read")
    # when it is read
    header = segment_format.decode_header(path, data, incarnation=INCARNATION)
    rows = segment_format.read_rows(path, file, header)
    # then it holds what the page says, each entry with its checksum
    assert rows["index"].tolist() == indexes
    assert rows["checksum"].tolist() == [entry_checksum(i, *ENTRIES[i]) for i in indexes]
    assert segment_format.read_trailer(path, file, header) == members
    # and it is written again byte for byte
    again = segment_format.encode_segment(
        rows=rows,
        payload=[data[header.data_at : header.trailer_at]],
        large=header.large,
        members=members,
        order=header.order,
        incarnation=INCARNATION,
    )
    assert b"".join(again) == data


@pytest.mark.parametrize(("number", "index"), [(1, 6), (2, 9)])
def test_a_shown_large_file_is_decoded_and_written_again_byte_for_byte(
    number: int, index: int
) -> None:
    # given the file on the page
    path = f"groups/{GROUP}/{number:016d}.large"
    data = shown(path)
    # when its one frame is read
    assert large_format.check_header(path, data, incarnation=INCARNATION) == number
    at = large_format.HEADER_BYTES
    frame = large_format.decode_frame(data[at:], at)
    assert frame is not None
    payload = data[frame.data_at : frame.data_at + frame.length]
    # then it is the entry, and it is written again byte for byte
    assert (frame.index, frame.term, payload) == (index, *ENTRIES[index])
    assert frame.data_checksum == crc32c(payload)
    run: Run = log_entries.run_of(frame.index, frame.term, [payload])
    again = large_format.encode_header(number, INCARNATION)
    assert again + b"".join(large_format.encode_frame(run)) == data


def test_the_shown_snapshot_is_decoded_and_written_again_byte_for_byte() -> None:
    # given both files on the page
    state, live = shown(f"{SNAPSHOT_FOLDER}/state"), shown(f"{SNAPSHOT_FOLDER}/live")
    disk, path = file_of(state)
    file = disk.open(path, "read")
    # when they are read
    meta, state_at = snapshot_format.decode_meta(path, file, incarnation=INCARNATION)
    trailer = snapshot_format.read_trailer(path, file, state_at)
    body = state[state_at : state_at + trailer.length]
    live_set = snapshot_format.decode_live(path, live, incarnation=INCARNATION)
    # then they say what the page says
    assert (meta, body, live_set) == (SNAPSHOT, STATE, BitMap64(LIVE))
    assert trailer.checksum == crc32c(STATE)
    # and they are written again byte for byte
    head = snapshot_format.encode_meta(meta, incarnation=INCARNATION)
    assert head + body + snapshot_format.encode_trailer(trailer) == state
    assert snapshot_format.encode_live(live_set, incarnation=INCARNATION) == live


def test_the_names_of_fields_on_the_pages_mean_what_the_decoders_take_them_for() -> None:
    # given shown structures, read by the tables alone
    path = "wal/0000000000000004.wal"
    wal, segment = shown(path), shown(f"groups/{GROUP}/{3:016d}.segment")
    large, state = shown(f"groups/{GROUP}/{1:016d}.large"), shown(f"{SNAPSHOT_FOLDER}/state")
    # then the decoders read the same out of them: in the WAL
    head = wal_format.decode_header(path, wal)
    assert numbers("wal.md", "File header", wal, 0).items() >= msgspec.to_builtins(head).items()
    at = 0xD0
    batch = wal_format.decode_batch(memoryview(wal), at, number=4, sequence=1)
    assert batch is not None
    by_table = numbers("wal.md", "Batch head", wal, at)
    assert (by_table["sequence"], by_table["records"]) == (batch.sequence, len(batch.records))
    for i, record in enumerate(batch.records):
        assert isinstance(record, Record)
        row = numbers("wal.md", "Record row", wal, at + 40 + 48 * i)
        said = [row[n] for n in ("kind", "writer", "previous", "first", "term", "entries")]
        r = record
        assert said == [r.kind, r.writer, r.previous, r.first, r.term, r.count]
    # and in a segment
    header = msgspec.to_builtins(segment_format.decode_header("", segment, incarnation=None))
    by_table = numbers("segment.md", "Header", segment, 0)
    by_table |= {"count": by_table["entries"], "index_checksum": by_table["rows_checksum"]}
    del header["incarnation"]
    assert by_table.items() >= header.items()
    # and in a large file
    frame = large_format.decode_frame(large[40:], 40)
    by_table = numbers("large.md", "Frame head", large, 40)
    assert frame is not None
    assert msgspec.to_builtins(frame).items() - by_table.items() == {("data_at", 72)}
    # and in a snapshot, whose floor is made up to be seen
    floor = snapshot_format.Floor(wal=3, sequence=7)
    trailer = snapshot_format.StateTrailer(length=16, checksum=5, floor=floor)
    tail = snapshot_format.encode_trailer(trailer)
    by_table = numbers("snapshot.md", "State trailer", tail, 0)
    assert (by_table["floor_wal"], by_table["floor_sequence"]) == (floor.wal, floor.sequence)
    assert (by_table["state_bytes"], by_table["state_checksum"]) == (16, 5)
    assert state.endswith(STATE + state[-len(tail) :])


def test_the_shown_texts_are_decoded_and_written_again_byte_for_byte() -> None:
    body, checksum = shown(f"groups/{GROUP}/group").splitlines()
    who = msgspec.json.decode(body, type=identity._Identity)
    assert (who.name, who.incarnation) == (GROUP, INCARNATION.hex())
    assert msgspec.json.encode(who) == body
    assert checksum == b"%08x" % crc32c(body)
    runs = shown(f"groups/{GROUP}/runs").splitlines()
    again = [msgspec.json.encode(msgspec.json.decode(run, type=CompactionRun)) for run in runs]
    assert again == runs
    plan, checksum = shown("groups/<group>/installed/plan").splitlines()
    assert msgspec.json.encode(msgspec.json.decode(plan, type=install._Plan)) == plan
    assert checksum == b"%08x" % crc32c(plan)


def test_the_shown_files_together_are_a_sound_data_directory() -> None:
    # given a disk with nothing on it but what the pages show
    disk = SimDisk()
    home = f"groups/{GROUP}"
    folders = {"wal", "groups", "roster", home, f"{home}/snapshots", SNAPSHOT_FOLDER}
    for folder in sorted(folders):
        disk.make_dir(folder)
    for path in example_bytes():
        if "/" in path:
            file = disk.open(path, "create")
            file.append([shown(path)])
            file.close()
    link = f"groups/{GROUP}/{2:016d}.segment"
    disk.symlink(f"{1:016d}.segment", link)
    # then nothing is wrong with it
    assert list(verify_log(disk)) == []
    # and the log gives every entry that counts
    log = Log.open(sim_runtime(1, disk=disk), read_only=True)
    group = log.group(GROUP)
    counting = [*LIVE, *range(5, 10)]
    found = {e.index: (e.term, bytes(e.data)) for e in group.read(counting)}
    assert found == {index: ENTRIES[index] for index in counting}
    assert (group.meta, b"".join(group.read_snapshot())) == (VOTE, STATE)


# -- checksums, time, frames --------------------------------------------------------------------


def test_the_program_on_the_page_of_checksums_prints_what_it_says() -> None:
    program, printed = blocks("checksums.md")
    ran = subprocess.run(
        [sys.executable, "-c", program.text], capture_output=True, text=True, check=True
    )
    assert ran.stdout == printed.text
    sums = [crc32c(b"123456789"), crc32c(b"o-2 paid"), entry_checksum(2, 1, b"o-2 paid")]
    assert [int(line, 16) for line in printed.text.splitlines()] == sums


def test_the_worked_checksum_is_right_step_by_step() -> None:
    [table] = [t for t in tables("checksums.md") if t.columns == ("step", "bytes", "checksum")]
    checksum, data_checksum = 0, 0
    for step, data, said in table.rows:
        checksum = crc32c(bytes.fromhex(data.strip("`")), checksum)
        assert int(said.strip("`"), 16) == checksum
        if step == "data":
            data_checksum = checksum
    assert checksum == entry_checksum(2, *ENTRIES[2])
    rows = np.array([(2, 1)], "<u8, <u8")
    sums = np.array([data_checksum], "u4")
    assert fold_checksums(sums, rows["f0"], rows["f1"]).tolist() == [checksum]


def test_a_hybrid_time_is_laid_out_as_the_page_says() -> None:
    low, high = layouts("time.md")["Hybrid time"]
    assert (low.offset, 8 * low.size) == (0, 16)
    assert (high.offset, 8 * high.size) == (low.size, 48)
    data = shown("a hybrid time")
    assert int.from_bytes(data, "little") == HYBRID_TIME
    assert int.from_bytes(data[2:], "little") == millis_of(HYBRID_TIME)


def test_the_clock_moves_as_the_page_says() -> None:
    [table] = [t for t in tables("time.md") if t.columns == ("wall", "call", "gives")]
    wall_ms = 0
    clock = HybridClock(lambda: wall_ms)
    for wall, call, gives in table.rows:
        wall_ms = int(wall)
        act: Callable[[], HybridTime] = clock.now
        if call != "now":
            remote = _time(call.removeprefix("observe "))
            act = lambda remote=remote: clock.observe(remote)  # type: ignore[misc]  # noqa: E731
        if gives == "refused":
            with pytest.raises(ClockSkew):
                act()
        else:
            assert act() == _time(gives)


def _time(text: str) -> HybridTime:
    millis, _, counter = text.partition(".")
    return HybridTime(int(millis) << 16 | int(counter))


def test_the_shown_connection_is_read_and_written_again_byte_for_byte() -> None:
    # given the bytes on the page
    data = shown("a connection")
    # when a reader gets them
    reader = frames.FrameReader(NetworkLimits())
    reader.room()[: len(data)] = data
    events = list(reader.arrived(len(data)))
    # then they are a hello and a frame, and are written again byte for byte
    assert events == [frames.Hello("n1:7400"), frames.Arrived(b"o-1 paid")]
    assert frames.hello("n1:7400") + frames.frame_header([b"o-1 paid"]) + b"o-1 paid" == data


# -- versions and damage ------------------------------------------------------------------------


def _decoders() -> dict[str, Callable[[bytes], object]]:
    def state(data: bytes) -> object:
        disk, path = file_of(data)
        return snapshot_format.decode_meta(path, disk.open(path, "read"))

    return {
        "wal/0000000000000004.wal": lambda d: wal_format.decode_header("", d),
        f"groups/{GROUP}/{1:016d}.segment": lambda d: segment_format.decode_header(
            "", d, incarnation=None
        ),
        f"groups/{GROUP}/{1:016d}.large": lambda d: large_format.check_header(
            "", d, incarnation=None
        ),
        f"{SNAPSHOT_FOLDER}/state": state,
        f"{SNAPSHOT_FOLDER}/live": lambda d: snapshot_format.decode_live("", d),
    }


@pytest.mark.parametrize("path", _decoders())
def test_a_newer_version_is_refused_by_name(path: str) -> None:
    # given a shown file that says it is of version 2, and whose head has something new besides:
    # with our version in its place the checksum would be right if a bit of it was all that is wrong
    data = bytearray(shown(path))
    data[4:6] = (2).to_bytes(2, "little")
    data[6] ^= 8
    if path.startswith("wal/"):  # where an old checksum would show that only a bit is wrong
        data[32:36] = crc32c(bytes(data[:32])).to_bytes(4, "little")
    # then the reader says both versions, as the index page says
    with pytest.raises(Damaged) as refused:
        _decoders()[path](bytes(data))
    said = "it has format version 2, and this release reads up to 1"
    assert said in refused.value.what
    assert said in (FORMATS / "README.md").read_text()


@pytest.mark.parametrize("path", _decoders())
def test_a_header_with_any_wrong_bit_under_its_checksum_is_refused(path: str) -> None:
    # given a shown file, and where its header's checksum ends
    page = next(page for page, name in HEX if name == path)
    heading = {"state": "State head", "live": "Live head"}.get(path.rpartition("/")[2])
    table = layouts(page)[heading or ("File header" if page == "wal.md" else "Header")]
    [end] = [field.offset + field.size for field in table if field.name == "checksum"]
    # then no bit before it can be wrong without being noticed
    decode, sound = _decoders()[path], shown(path)
    for bit in range(8 * end):
        data = bytearray(sound)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            decode(bytes(data))


def test_a_torn_end_of_the_newest_wal_file_is_dropped_and_a_torn_beginning_is_damage() -> None:
    # given the shown WAL file, cut somewhere
    data, path = shown("wal/0000000000000004.wal"), "wal/0000000000000004.wal"
    second_batch = 0xD0
    for size in range(wal_format.FILE_HEADER_BYTES, len(data)):
        disk = SimDisk()
        disk.make_dir("wal")
        disk.open(path, "create").append([data[:size]])
        found: list[wal_recovery.WalFile] = []
        records = list(wal_recovery.read_wals(disk, found))
        # then its first batch must be whole, and the second is either there or was never told of
        if size < second_batch:
            assert found[0].damage
        else:
            assert (found[0].damage, found[0].durable_bytes) == ([], second_batch)
            assert len(records) == 1


def test_the_names_of_a_snapshots_files_are_on_its_page() -> None:
    shown_names = {b.info.rpartition("/")[2] for b in blocks("snapshot.md") if b.language == "hex"}
    assert shown_names == {snapshots.STATE, snapshots.LIVE}
