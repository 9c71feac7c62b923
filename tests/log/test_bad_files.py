"""Files that are damaged, cut, foreign or from the future: an error by name, never wrong data.

Every file of a small directory is spoilt in every way we can think of. Then the log is opened, all
is read, and what it gives must be what was written. `verify` must see the damage, too.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from log.full_house import (
    LARGE,
    content,
    copy_of,
    file_paths,
    full_house,
    open_house,
    rewrite,
    served,
    truth,
)
from log.world import data_of
from lowmark.errors import Corrupt, LowmarkError
from lowmark.inspect import Finding, dump_log, verify_log
from lowmark.log import (
    GroupQuarantined,
    Log,
    NewerFormat,
    explain_log,
)
from lowmark.log import identity as identity_file
from lowmark.log.segment_format import read_trailer
from lowmark.log.segments import SegmentReader
from lowmark.log.snapshots import load_snapshot, read_state
from lowmark.log.wal_format import decode_batch
from lowmark.runtime.sim import SimDisk, SimLoop

G = "groups/g"
SNAPSHOT = f"{G}/snapshots/000000000000000e-0000000000000001"
OLDER_WAL, NEWEST_WAL = "wal/0000000000000007.wal", "wal/0000000000000008.wal"
TERMS = (1, 2, 3)

KINDS = {
    "identity": f"{G}/group",
    "merged segment": f"{G}/0000000000000001.segment",
    "segment with large entries": f"{G}/0000000000000003.segment",
    "newest segment": f"{G}/0000000000000005.segment",
    "installed segment": "groups/i/0000000000000002.segment",
    "large file of a segment": f"{G}/0000000000000001.large",
    "large file of the WAL": f"{G}/0000000000000003.large",
    "state": f"{SNAPSHOT}/state",
    "live set": f"{SNAPSHOT}/live",
    "older WAL": OLDER_WAL,
    "newest WAL": NEWEST_WAL,
    "quarantine": "groups/q/quarantine",
    "runs": f"{G}/runs",
}
FILES = tuple(file_paths(full_house()))
UNCHECKED = {"groups/q/quarantine", f"{G}/runs", *(p for p in FILES if p.startswith("roster/"))}
"""Text for people, and empty files: nothing that anybody relies on but that it is there."""


# -- what must hold, whatever was done to the files ----------------------------------------------


NEW = (9, b"new")
"""What the check itself appends, to see whether a group goes on."""


def check_house(disk: SimDisk, spoilt: str) -> None:
    """Open the log, read everything, write what can be written; then open it again and read."""
    log, loop = open_house(disk)
    loop.run_until(lambda: log.idle)
    for name in truth():
        _check_group(log, name)
    loop.run_until(lambda: log.idle)
    for name in truth():
        _check_writes(log, loop, name, spoilt=spoilt)
    loop.run_until(lambda: log.idle)
    log.close()
    log, _ = open_house(disk, read_only=True)
    for name in truth():
        _check_group(log, name)
    log.close()


def _check_group(log: Log, name: str) -> None:
    """Whatever is served is right; a group that claims to be whole is whole."""
    found, expected = served(log, name), truth()[name]
    for index, (term, data) in found.items():
        written = {data_of(index, term), data_of(index, term, LARGE)} if term in TERMS else ()
        assert data in written or (term, data) == NEW
    if name in log.unreadable:
        return
    group = log.group(name)
    _check_state(log, name)
    if group.quarantined is None:
        mine = {i for i, entry in found.items() if entry == NEW}
        counts = {i for i in expected.entries if i <= group.last_index} - mine
        assert {i: found.get(i) for i in counts} == {i: expected.entries[i] for i in counts}
        assert not group.row.known or found.keys() - mine == counts


def _check_state(log: Log, name: str) -> None:
    group = log.group(name)
    try:
        state = b"".join(group.read_snapshot())
    except Corrupt:
        return
    assert state == truth()[name].state or (state == b"" and group.quarantined is not None)


def _check_writes(log: Log, loop: SimLoop, name: str, *, spoilt: str) -> None:
    """Other groups go on; the spoilt one goes on or says that it does not."""
    try:
        group = log.group(name)
        index = group.append(NEW[0], [NEW[1]])
    except (Corrupt, GroupQuarantined):
        shared = spoilt.startswith("wal/")
        assert shared or name == "q" or spoilt.startswith(f"groups/{name}/"), name
        return
    loop.run_until(lambda: group.written_index >= index)
    assert bytes(group.read([index])[0].data) == NEW[1]


def findings(disk: SimDisk) -> list[Finding]:
    """What verify says, without the quarantine that is there in any case."""
    before = disk.fingerprint()
    found = [f for f in verify_log(disk) if (f.kind, f.group) != ("quarantine", "q")]
    assert disk.fingerprint() == before
    return found


def check_tools(disk: SimDisk) -> None:
    """Dump and explain live with whatever there is."""
    before = disk.fingerprint()
    for _ in dump_log(disk, data=True):
        pass
    log, _ = open_house(disk, read_only=True)
    explain_log(log)
    log.close()
    assert disk.fingerprint() == before


# -- bits ---------------------------------------------------------------------------------------


def padding(path: str, data: bytes) -> set[int]:
    """Bytes that fill up and say nothing: no checksum covers them, nothing reads them."""
    if path.endswith(".segment"):
        return set(range(100, 104))
    if path.endswith(".large"):
        found, at = set(range(36, 40)), 40
        while at < len(data):
            length = struct.unpack_from("<QQII", data, at)[2]
            end = at + 32 + length
            found |= {*range(at + 28, at + 32), *range(end, end + -length % 8)}
            at = end + -length % 8
        return found
    if path.endswith(".wal"):
        return _wal_padding(int(path[4:-4]), data)
    if path.endswith("/group"):
        return {len(data) - 1}  # the last line break
    return set()


def _wal_padding(number: int, data: bytes) -> set[int]:
    found, at, sequence = set(range(36, 40)), 40, 0
    while (
        batch := decode_batch(memoryview(data), at, number=number, sequence=sequence)
    ) is not None:
        rows, body_bytes = struct.unpack_from("<4sIQQQ", data, at)[1::3]
        found |= set(range(at + 36, at + 40))
        found |= set(range(at + 40 + rows * 48 + body_bytes, batch.end))
        at, sequence = batch.end, sequence + 1
    return found


def flip(disk: SimDisk, path: str, bit: int) -> SimDisk:
    spoilt = copy_of(disk)
    spoilt.flip_bit(path, bit)
    return spoilt


def sampled_bits(path: str, *, every_bytes: int) -> Iterator[int]:
    """One bit of every so many bytes, another one each time."""
    dice = Random(path)
    for byte in range(dice.randrange(every_bytes), len(content(full_house(), path)), every_bytes):
        yield 8 * byte + dice.randrange(8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_gives_no_wrong_data_and_is_found(kind: str) -> None:
    flip_and_look(KINDS[kind], every_bytes=24)


@pytest.mark.release  # the one before flips fewer of them, and each reader is shown all below
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_in_any_byte_gives_no_wrong_data_and_is_found(kind: str) -> None:
    flip_and_look(KINDS[kind], every_bytes=3)


def flip_and_look(path: str, *, every_bytes: int) -> None:
    house = full_house()
    fillers = padding(path, content(house, path))
    for bit in sampled_bits(path, every_bytes=every_bytes):
        # given a house in which one bit is not what it was
        spoilt = flip(house, path, bit)
        # then verify says so, unless nothing depends on that bit
        found = findings(spoilt)
        ignored = bit // 8 in fillers or path in UNCHECKED
        assert ignored or any(path in finding.path for finding in found), (bit, found)
        # and whatever the log gives is what was written
        check_house(spoilt, path)


# -- every bit, one reader at a time --------------------------------------------------------------


def _read_identity(disk: SimDisk) -> object:
    return identity_file.read_identity(disk, "g")


def _read_segment(disk: SimDisk, number: int) -> object:
    reader = SegmentReader(disk, G, number, incarnation=identity_file.read_identity(disk, "g"))
    entries = [(e.index, e.term, bytes(e.data)) for e in reader.read(reader.rows)]
    return entries, read_trailer("", reader.file, reader.header)


def _read_snapshot(disk: SimDisk) -> object:
    found = load_snapshot(disk, SNAPSHOT, incarnation=None)
    return found.meta, found.floor, b"".join(read_state(disk, SNAPSHOT))


def _read_live(disk: SimDisk) -> object:
    found = load_snapshot(disk, SNAPSHOT, incarnation=None).live
    if found is None:
        raise Corrupt("the live set is lost")
    return found


READERS: dict[str, tuple[str, Callable[[SimDisk], object]]] = {
    "identity": (KINDS["identity"], _read_identity),
    "merged segment": (KINDS["merged segment"], lambda disk: _read_segment(disk, 1)),
    "segment": (KINDS["segment with large entries"], lambda disk: _read_segment(disk, 3)),
    "large": (KINDS["large file of a segment"], lambda disk: _read_segment(disk, 3)),
    "state": (KINDS["state"], _read_snapshot),
    "live set": (KINDS["live set"], _read_live),
}


@pytest.mark.parametrize("kind", READERS)
def test_no_reader_takes_a_file_with_any_one_bit_flipped(kind: str) -> None:
    path, read = READERS[kind]
    house = full_house()
    intact = read(house)
    data = content(house, path)
    for bit in range(8 * len(data)):
        house.flip_bit(path, bit)
        with contextlib.suppress(Corrupt):
            assert read(house) == intact  # the bit says nothing
        house.flip_bit(path, bit)
    assert read(house) == intact


@pytest.mark.parametrize("kind", READERS)
def test_no_reader_takes_a_file_that_was_cut(kind: str) -> None:
    path, read = READERS[kind]
    house = full_house()
    intact, data = read(house), content(house, path)
    for length in range(len(data)):
        rewrite(house, path, data[:length])
        with contextlib.suppress(Corrupt):
            assert read(house) == intact


@pytest.mark.parametrize("kind", READERS)
@given(noise=st.binary(max_size=400), keep=st.integers(0, 12))
@settings(max_examples=60)
def test_no_reader_takes_noise(kind: str, noise: bytes, keep: int) -> None:
    # The magic and the version may be right: noise is then read as deep as it goes.
    path, read = READERS[kind]
    house = full_house()
    rewrite(house, path, content(house, path)[:keep] + noise)
    with pytest.raises(Corrupt):
        read(house)


# -- whole files ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_was_cut_gives_no_wrong_data_and_is_found(kind: str) -> None:
    path = KINDS[kind]
    data = content(full_house(), path)
    for length in sorted({0, 1, 4, 39, 40, len(data) // 2, len(data) - 9, len(data) - 1}):
        if not 0 <= length < len(data):
            continue
        house = full_house()
        rewrite(house, path, data[:length])
        cut_at_a_batch = path == NEWEST_WAL and not findings(house)
        ignored = path in UNCHECKED or length in padding(path, data) or cut_at_a_batch
        assert ignored or any(path in finding.path for finding in findings(house)), length
        check_tools(house)
        check_house(house, path)


@pytest.mark.parametrize("path", FILES)
def test_a_file_of_zeroes_gives_no_wrong_data_and_is_found(path: str) -> None:
    house = full_house()
    rewrite(house, path, bytes(len(content(house, path))))
    assert path in UNCHECKED or any(path in finding.path for finding in findings(house))
    check_tools(house)
    check_house(house, path)


def newer(data: bytes) -> bytes:
    """As a newer release would begin it: with another version, and something else that is new."""
    return data[:4] + struct.pack("<HH", 99, 7) + data[8:]


@pytest.mark.parametrize("path", [p for p in FILES if content(full_house(), p)[:2] == b"LM"])
@pytest.mark.parametrize("bit", [0, 1, 9])
def test_a_bit_of_the_version_that_turns_is_damage_and_no_newer_format(path: str, bit: int) -> None:
    house = full_house()
    house.flip_bit(path, 8 * 4 + bit)
    found = [finding for finding in findings(house) if path in finding.path]
    assert found
    assert not any("this release reads up to" in finding.what for finding in found)


@pytest.mark.parametrize("path", [p for p in FILES if content(full_house(), p)[:2] == b"LM"])
def test_a_file_of_a_newer_format_is_refused_by_name(path: str) -> None:
    house = full_house()
    data = content(house, path)
    rewrite(house, path, newer(data))
    if path.startswith("wal/"):
        # a newer release makes its own checksum, too
        head = house.open(path, "read").read_at(0, 32)
        rewrite(house, path, head + struct.pack("<I", crc32c(head)) + content(house, path)[36:])
    found = [finding for finding in findings(house) if path in finding.path]
    assert any("format version 99" in finding.what for finding in found)
    assert any(finding.offset == 4 for finding in found)
    if path.startswith("wal/"):
        # a newer WAL may hold anything of any group: nothing is opened, and nothing is changed
        before = house.fingerprint()
        with pytest.raises(NewerFormat, match="format version 99"):
            open_house(house)
        assert house.fingerprint() == before
        assert any("format version 99" in line.problem for line in dump_log(house))
    else:
        check_tools(house)
        check_house(house, path)


def test_the_release_that_wrote_a_newer_file_finds_the_group_as_it_left_it() -> None:
    # given a segment of a newer release, and this release that opened the log in between
    house, path = full_house(), KINDS["merged segment"]
    own = content(house, path)
    rewrite(house, path, newer(own))
    log, loop = open_house(house)
    loop.run_until(lambda: log.idle)
    assert log.group("g").quarantined is not None
    log.close()
    # when it is opened by the release that can read it, then nothing is quarantined
    rewrite(house, path, own)
    log, _ = open_house(house)
    assert log.group("g").quarantined is None


@pytest.mark.parametrize("path", FILES)
def test_a_file_that_is_gone_gives_no_wrong_data(path: str) -> None:
    house = full_house()
    house.unlink(path)
    gone_without_a_trace = {*UNCHECKED, NEWEST_WAL, "groups/q/0000000000000001.segment"}
    assert path in gone_without_a_trace or findings(house)
    check_tools(house)
    if path not in gone_without_a_trace:
        check_house(house, path)


H_SNAPSHOT = "groups/h/snapshots/0000000000000005-0000000000000001"
I_SNAPSHOT = SNAPSHOT.replace("/g/", "/i/")
ALIKE = [
    (f"{SNAPSHOT}/live", f"{H_SNAPSHOT}/live"),
    (f"{I_SNAPSHOT}/live", f"{H_SNAPSHOT}/live"),
    (f"{SNAPSHOT}/state", f"{I_SNAPSHOT}/state"),
    (f"{I_SNAPSHOT}/state", f"{SNAPSHOT}/state"),
]
"""Pairs of a file and a stranger that fits but for its owner."""


@pytest.mark.parametrize(("path", "other"), ALIKE)
def test_a_snapshot_of_another_group_is_found(path: str, other: str) -> None:
    house = full_house()
    rewrite(house, path, content(house, other))
    assert any(path in finding.path for finding in findings(house))


def _strangers_to(path: str) -> Iterator[str]:
    """Files of the same kind from elsewhere, and some of other kinds."""
    dice, own = Random(path), content(full_house(), path)
    others = [other for other in FILES if content(full_house(), other) != own]
    ending = path.rpartition("/")[2][-6:]
    alike = [other for other in others if other.endswith(ending)]
    yield from alike
    yield from dice.sample([other for other in others if other not in alike], 2)


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES)
def test_a_foreign_file_gives_no_wrong_data_and_is_found(path: str) -> None:
    for other in _strangers_to(path):
        house = full_house()
        rewrite(house, path, content(house, other))
        found = findings(house)
        assert path in UNCHECKED or any(path in finding.path for finding in found), other
        check_tools(house)
        check_house(house, path)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=60)
def test_noise_in_any_file_gives_no_wrong_data(data: st.DataObject) -> None:
    house = full_house()
    path = data.draw(st.sampled_from(FILES))
    intact = content(house, path)
    at = data.draw(st.integers(0, len(intact)))
    rewrite(house, path, intact[:at] + data.draw(st.binary(min_size=1, max_size=200)))
    findings(house)
    check_tools(house)
    check_house(house, path)


# -- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target", ["nowhere.segment", "../h/0000000000000001.segment", "0000000000000006.segment"]
)
def test_a_link_that_leads_astray_gives_no_wrong_data_and_is_found(target: str) -> None:
    house = full_house()
    house.symlink(target, f"{G}/0000000000000006.segment")
    assert any("0006.segment" in finding.path for finding in findings(house))
    check_tools(house)
    check_house(house, f"{G}/0000000000000006.segment")


def test_files_that_are_not_ours_are_named_and_left_alone() -> None:
    # given files and folders that somebody put there
    house = full_house()
    strangers = ["notes.txt", "wal/backup", "groups/readme", f"{G}/x", f"{G}/snapshots/x"]
    for path in strangers:
        house.open(path, "create").append([b"mine"])
    house.make_dir("groups/lost")
    # then verify names them all
    named = {finding.path for finding in findings(house)}
    assert {*strangers[:-1], "groups/lost/group"} <= named
    # and the log works, and leaves them
    check_house(house, "groups/lost/group")
    assert all(house.stat(path) is not None for path in strangers[:-1])


def test_a_quarantine_that_could_not_be_written_down_is_not_forgotten() -> None:
    # given a damaged record of g, and a disk that refuses to write its quarantine down
    house = full_house()
    house.flip_bit(OLDER_WAL, 8 * 430)
    house.fail_next("create", "g/quarantine.tmp")
    # when the log is opened, works off its WAL files, and is opened again
    log, loop = open_house(house)
    loop.run_until(lambda: log.idle)
    log.close()
    log, _ = open_house(house, read_only=True)
    # then the group does not come back shorter, as if nothing had happened
    group = log.group("g")
    assert group.quarantined is not None or group.last_index == truth()["g"].last_index


def test_a_vote_in_the_first_batch_of_a_file_is_never_taken_for_a_torn_write() -> None:
    # given a WAL file that holds nothing but the votes it began with, one of them damaged
    house = full_house()
    house.unlink(OLDER_WAL)
    rewrite(house, NEWEST_WAL, content(house, NEWEST_WAL)[:216])
    house.flip_bit(NEWEST_WAL, 8 * 200)
    # then the group does not come back as if it had never voted
    log, _ = open_house(house, read_only=True)
    assert log.group("g").quarantined is not None
    assert any(NEWEST_WAL in f.path and f.kind == "damage" for f in findings(house.killed()))


def test_damage_in_one_group_is_told_with_file_place_and_advice() -> None:
    house = full_house()
    house.flip_bit(KINDS["merged segment"], 8 * 202)
    log, _ = open_house(house, read_only=True)
    with pytest.raises(LowmarkError) as caught:
        log.group("g").read([2])
    message = str(caught.value)
    assert "groups/g/0000000000000001.segment is damaged at byte 200" in message
    assert "entry 2 fails its checksum" in message
    assert "lowmark log verify" in message


def test_a_damaged_wal_file_is_set_aside_and_spoils_no_later_group() -> None:
    # given a WAL file in which nobody can tell whose entries are gone
    house = full_house()
    house.flip_bit(OLDER_WAL, 8 * 60)
    # when the log is opened, and every group is replaced by a fresh one
    log, loop = open_house(house)
    loop.run_until(lambda: log.idle)
    for group in log.groups():
        assert group.quarantined is not None
        log.delete_group(group.name)
    log.create_group("fresh").append(1, [b"new"])
    loop.run_until(lambda: log.idle)
    log.close()
    # then the file is kept for analysis, and the new group has nothing to do with it
    assert house.stat(f"{OLDER_WAL}.damaged") is not None
    log, loop = open_house(house)
    assert log.group("fresh").quarantined is None
    assert bytes(log.group("fresh").read([1])[0].data) == b"new"
