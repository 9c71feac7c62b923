"""Holds what clients wrote down against what is there at the end, row by row.

The log of each partition at the end is the truth: offsets never change, so whatever a client saw
must be a piece of it. What has to be in a piece, the times of calls say: a call that began after
another one was acknowledged has it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torture.client import IDS, META_END, PROCESSES, weight_of
from torture.history import NEMESIS, Call, Event, calls_of

SHOWN = 8
"""Of each kind of violation."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the log at the end."""

    id: int
    seq: int | None
    who: str
    time: int


Log = Mapping[int, Sequence[Row]]
"""By partition; the place in the list is the offset."""


@dataclass(slots=True)
class Verdict:
    """What was counted, and what is wrong."""

    rows: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    errors: int = 0
    """Calls that failed while there was no majority, or whose end may be unknown."""
    slowest: dict[str, float] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    """How often each kind of violation was found."""
    _examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, kind: str, what: str) -> None:
        self.kinds[kind] += 1
        if len(self._examples[kind]) < SHOWN:
            self._examples[kind].append(what)

    @property
    def violations(self) -> list[str]:
        """Of each kind how many there are, and the first of them: no kind hides another one."""
        found = []
        for kind, times in sorted(self.kinds.items(), key=lambda one: (-one[1], one[0])):
            for number, what in enumerate(self._examples[kind], 1):
                found.append(f"{kind} ({number} of {times}): {what}")
        return found

    @property
    def count(self) -> int:
        return self.kinds.total()


def check(rows: Sequence[Event], meta: Sequence[Event], log: Log) -> Verdict:
    """All that can be said of two histories and the log at the end."""
    verdict = Verdict(rows=sum(len(part) for part in log.values()))
    calls, meta_calls = calls_of(rows), calls_of(meta)
    for prefix, some in (("", calls), ("meta-", meta_calls)):
        for call in some:
            verdict.calls[prefix + call.f] += call.ok
            if call.ended is not None and call.f not in {"tail", "watch"}:
                took_s = (call.ended - call.began) / 1e9
                slowest = verdict.slowest.get(prefix + call.f, 0.0)
                verdict.slowest[prefix + call.f] = max(slowest, took_s)
    known = _Rows(calls, log, verdict)
    known.check_appends()
    known.check_keys()
    known.check_scans()
    known.check_reads()
    known.check_history()
    known.check_tails()
    known.check_cursors()
    _check_metastore(meta_calls, verdict)
    check_errors([*calls, *meta_calls], [*rows, *meta], verdict)
    return verdict


def check_errors(calls: Iterable[Call], events: Iterable[Event], verdict: Verdict) -> None:
    """No call fails while a majority is up all the time; but some may not know their outcome."""
    changes = sorted(
        (event.time, bool(event.value))
        for event in events
        if event.process == NEMESIS and event.f == "majority"
    )
    times = [time for time, _ in changes]
    for call in calls:
        if call.type == "ok" or call.ended is None or call.node:
            continue
        at = bisect_right(times, call.began) - 1
        up = at >= 0 and changes[at][1] and bisect_right(times, call.ended) - 1 == at
        expected = call.unknown and call.f in {"commit", "write-meta", "cas"}
        expected |= call.unknown and call.f == "write" and isinstance(call.asked[0], str)
        if up and not expected:
            took_s = (call.ended - call.began) / 1e9
            verdict.add(
                f"error {_name_of(call.error)} of {call.f}",
                f"{call.f} {_short(call.asked)} of process {call.process} at {call.began / 1e9:.3f}"
                f" failed after {took_s:.2f} s though a majority was up: {call.error}",
            )
        else:
            verdict.errors += 1


class _Rows:
    """What is known of rows."""

    def __init__(self, calls: Sequence[Call], log: Log, verdict: Verdict) -> None:
        self._calls = calls
        self._log = log
        self._verdict = verdict
        self._places: dict[int, tuple[int, int]] = {}
        """Of rows with ids of their own: partition and offset."""
        self._began: dict[int, list[int]] = {
            number: [0] * len(part) for number, part in log.items()
        }
        """When the call began that wrote the row."""
        acked: dict[int, list[tuple[int, int]]] = {number: [] for number in log}
        """By partition: when a row was acknowledged, and the offset behind it."""
        self._acked = acked
        self._acked_times: dict[int, list[int]] = {}
        self._acked_ends: dict[int, list[int]] = {}

    def _of(self, *kinds: str) -> list[Call]:
        return [call for call in self._calls if call.f in kinds]

    def _least(self, partition: int, before: int) -> int:
        """The offset behind all that was acknowledged before a time."""
        if partition not in self._acked_times:
            some = sorted(self._acked[partition])
            self._acked_times[partition] = [time for time, _ in some]
            ends, most = list[int](), 0
            for _, end in some:
                most = max(most, end)
                ends.append(most)
            self._acked_ends[partition] = ends
        at = bisect_left(self._acked_times[partition], before)
        return self._acked_ends[partition][at - 1] if at else 0

    # -- rows in ----------------------------------------------------------------------------------

    def check_appends(self) -> None:
        """What was acknowledged is there, and nothing is there twice."""
        add = self._verdict.add
        last: dict[tuple[int, int], int] = {}
        for number, part in self._log.items():
            before = 0
            for offset, row in enumerate(part):
                if row.time < before:
                    add("time", f"partition {number}: the time of offset {offset} goes back")
                before = row.time
                if row.id < 0:
                    continue
                if row.id in self._places:
                    where = self._places[row.id]
                    add("doubled", f"row {row.id} is at {where} and at {(number, offset)}")
                self._places[row.id] = (number, offset)
                lane = (number, row.id // IDS)
                if row.id < last.get(lane, 0):
                    add("order", f"row {row.id} is behind {last[lane]} in partition {number}")
                last[lane] = row.id
        asked = set[int]()
        for call in self._of("append", "send"):
            ids = range(call.asked["first"], call.asked["first"] + call.asked["count"])
            asked.update(ids)
            for key in ids:
                place = self._places.get(key)
                if place is not None:
                    self._began[place[0]][place[1]] = call.began
                    if call.ok and call.ended is not None:
                        self._acked[place[0]].append((call.ended, place[1] + 1))
                elif call.ok:
                    add("lost", f"row {key} of {call.f} was acknowledged, and is not there")
            if call.ok and call.f == "append":
                told = 0
                for number, offset, count in call.value["parts"]:
                    told += count
                    found = self._log[number][offset : offset + count]
                    if len(found) != count or any(row.id not in ids for row in found):
                        add("place", f"append {call.asked} is not where it said: {number, offset}")
                if told != call.asked["count"]:
                    add("place", f"append {call.asked} told of {told} rows")
        for key in self._places.keys() - asked:
            add("alien", f"row {key} at {self._places[key]} was never sent")

    def check_keys(self) -> None:
        """Each change of a key that was acknowledged is there, once and in order."""
        add = self._verdict.add
        found: dict[int, list[tuple[int | None, int, int]]] = defaultdict(list)
        for number, part in self._log.items():
            for offset, row in enumerate(part):
                if row.id < 0:
                    found[row.id].append((row.seq, number, offset))
        self._changes: dict[int, list[Call]] = defaultdict(list)
        for call in self._of("write"):
            self._changes[call.asked[0]].append(call)
        for key, changes in self._changes.items():
            # The n-th change writes n, but each tenth one deletes.
            places: dict[int, tuple[int, int]] = {}
            at = 0
            for seq, number, offset in found[key]:
                index = seq if seq is not None else at + 10 - at % 10
                if index <= at:
                    add("doubled", f"change {index} of key {key} at {number, offset}, behind {at}")
                elif index > len(changes):
                    add("alien", f"change {index} of key {key} at {number, offset}")
                else:
                    places[index] = (number, offset)
                at = max(at, index)
            for index, call in enumerate(changes, 1):
                place = places.get(index)
                if place is not None:
                    self._began[place[0]][place[1]] = call.began
                    if call.ok and call.ended is not None:
                        self._acked[place[0]].append((call.ended, place[1] + 1))
                elif call.ok:
                    add("lost", f"change {index} of key {key} was acknowledged, and is not there")

    # -- rows out ---------------------------------------------------------------------------------

    def _check_pieces(self, call: Call, pieces: Iterable[Any], who: str) -> dict[int, list[int]]:
        """That pieces are pieces of the log; gives the bounds of each partition's."""
        add = self._verdict.add
        bounds: dict[int, list[int]] = {}
        for number, offset, ids, seqs in pieces:
            end = offset + len(ids)
            known = bounds.get(number)
            if known is None:
                bounds[number] = [offset, end]
            elif known[1] != offset:
                add("hole", f"{who} saw {offset} behind {known[1]} of partition {number}")
                known[1] = end
            else:
                known[1] = end
            part = self._log[number][offset:end]
            if [(row.id, row.seq) for row in part] != list(zip(ids, seqs, strict=True)):
                add("changed", f"{who} saw other rows in partition {number}, {offset} to {end}")
            elif call.ended is not None and max(self._began[number][offset:end]) > call.ended:
                add("early", f"{who} saw rows of partition {number} that were sent later")
        return bounds

    def _check_fresh(self, call: Call, ends: Mapping[int, int], who: str) -> None:
        for number, end in ends.items():
            least = self._least(number, call.began)
            if end < least:
                self._verdict.add(
                    "stale",
                    f"{who} ended at {end} of partition {number}, and {least - 1} was acknowledged"
                    f" before it began",
                )

    def check_scans(self) -> None:
        """A read has all that was acknowledged before it began, and nothing else."""
        for call in self._of("scan"):
            if not call.ok:
                continue
            who = f"the scan of {call.process} at {call.began / 1e9:.3f}"
            start, ends = dict(call.value["start"]), dict(call.value["end"])
            bounds = self._check_pieces(call, call.value["rows"], who)
            for number, end in ends.items():
                low, high = bounds.get(number, [start[number], start[number]])
                if (low, high) != (start[number], end):
                    self._verdict.add(
                        "hole",
                        f"{who} gave {low} to {high} of partition {number}, not {start[number]}"
                        f" to {end}",
                    )
            self._check_fresh(call, ends, who)

    def check_reads(self) -> None:
        """A key has the last change that was acknowledged, or one that was under way."""
        seen: dict[int, list[tuple[int, int]]] = defaultdict(list)
        by_key: dict[int, list[Call]] = defaultdict(list)
        for call in self._of("read"):
            if call.ok:
                by_key[call.asked[0]].append(call)
        for key, reads in by_key.items():
            changes = self._changes[key]
            began = [change.began for change in changes]
            acked = sorted(
                (change.ended or 0, index) for index, change in enumerate(changes, 1) if change.ok
            )
            acked_times = [time for time, _ in acked]
            for call in reads:
                assert call.ended is not None
                at = bisect_left(acked_times, call.began)
                low = acked[at - 1][1] if at else 0
                high = bisect_right(began, call.ended)
                seq = call.value[1]
                fits = [
                    index
                    for index in range(low, high + 1)
                    if (None if index % 10 == 0 else index) == seq
                ]
                if not fits:
                    self._verdict.add(
                        "stale",
                        f"the read of {key} by {call.process} at {call.began / 1e9:.3f} found"
                        f" {seq}; {low} was acknowledged before, {high} begun",
                    )
                else:
                    seen[key].append((call.ended, fits[0]))
                    call.revision = fits[-1]
            # What one read has seen, no later one misses.
            ended = sorted(seen[key])
            at, most = 0, 0
            for call in sorted(reads, key=lambda one: one.began):
                while at < len(ended) and ended[at][0] < call.began:
                    most = max(most, ended[at][1])
                    at += 1
                if call.revision and call.revision < most:
                    self._verdict.add(
                        "stale",
                        f"the read of {key} by {call.process} at {call.began / 1e9:.3f} found"
                        f" {call.value[1]}; an earlier one had seen {most}",
                    )

    def check_history(self) -> None:
        """As of a time, the answer is what the log had then, whenever and wherever it is asked."""
        add = self._verdict.add
        for call in self._of("snapshot"):
            if not call.ok:
                continue
            who = f"the snapshot of {call.process} at {call.began / 1e9:.3f}"
            ends, time = dict(call.value["ends"]), call.value["time"]
            self._check_fresh(call, ends, who)
            for number, end in ends.items():
                part = self._log[number]
                if end > len(part):
                    add("lost", f"{who} had {end} rows of partition {number}, not {len(part)}")
                elif end and part[end - 1].time > time:
                    add("snapshot", f"{who} has rows of partition {number} above its time")
                if end < len(part) and part[end].time <= time:
                    add("snapshot", f"{who} lacks rows of partition {number} up to its time")
        asked: dict[int, list[Call]] = defaultdict(list)
        for call in self._of("as-of"):
            if call.ok:
                asked[call.value["partition"]].append(call)
        for number, some in asked.items():
            there: dict[int, int] = {}
            digest, offset, part = 0, 0, self._log[number]
            for call in sorted(some, key=lambda one: one.value["time"]):
                while offset < len(part) and part[offset].time <= call.value["time"]:
                    row = part[offset]
                    if row.id in there:
                        digest -= weight_of(row.id, there.pop(row.id))
                    if row.seq is not None:
                        there[row.id] = row.seq
                        digest += weight_of(row.id, row.seq)
                    offset += 1
                right = (len(there), f"{digest % (1 << 64):016x}")
                if (call.value["rows"], call.value["digest"]) != right:
                    add(
                        "as-of",
                        f"partition {number} as of {call.value['time']} had {call.value['rows']}"
                        f" rows at {call.began / 1e9:.3f} for {call.process}; at the end it has"
                        f" {right[0]}, or others",
                    )

    def check_tails(self) -> None:
        """Who follows sees each offset once and in order, up to the last."""
        next_: dict[int | str, dict[int, int]] = {}
        for call in self._of("tail"):
            client = _client(call)
            at = next_.setdefault(client, dict.fromkeys(self._log, 0))
            if not call.ok:
                continue
            who = f"the tail of {client} at {call.began / 1e9:.3f}"
            for number, (low, high) in self._check_pieces(call, call.value, who).items():
                if low != at[number]:
                    self._verdict.add(
                        "tail", f"{who} saw {low} of partition {number}, and {at[number]} is next"
                    )
                at[number] = high
        for client, ends in next_.items():
            for number, end in ends.items():
                if end != len(self._log[number]):
                    self._verdict.add(
                        "tail",
                        f"the tail of {client} came to {end} of partition {number}, not to"
                        f" {len(self._log[number])}",
                    )

    def check_cursors(self) -> None:
        """A cursor never goes back, and stands where it was put."""
        add = self._verdict.add
        stood: dict[int | str, dict[int, int]] = {}
        maybe: dict[int | str, dict[int, set[int]]] = {}
        for call in self._of("poll", "commit"):
            client = _client(call)
            at = stood.setdefault(client, dict.fromkeys(self._log, 0))
            open_ = maybe.setdefault(client, {number: set() for number in self._log})
            who = f"the {call.f} of {client} at {call.began / 1e9:.3f}"
            if call.f == "commit":
                for number, offset in call.value if call.ok else call.asked:
                    if not call.ok:
                        open_[number].add(offset)
                    elif offset < dict(call.asked)[number]:
                        add("cursor", f"{who} left it at {offset} of partition {number}")
                    else:
                        at[number] = offset
            elif call.ok:
                stands = dict(call.value["stands"])
                for number, offset in stands.items():
                    if offset != at[number] and offset not in open_[number]:
                        add("cursor", f"{who}: it stands at {offset} of {number}, not {at[number]}")
                    if offset < at[number]:
                        add("cursor", f"{who}: it went back to {offset} of {number}")
                    at[number] = max(at[number], offset)
                for number, (low, high) in self._check_pieces(
                    call, call.value["rows"], who
                ).items():
                    # An unknown commit may take effect between the look and the read.
                    if low != stands[number] and low not in open_[number]:
                        add("cursor", f"{who} began at {low} of partition {number}")
                    if high != dict(call.value["end"])[number]:
                        add("cursor", f"{who} ended at {high} of partition {number}")


def _check_metastore(calls: Sequence[Call], verdict: Verdict) -> None:
    """Values stand at one revision each; who reads later reads no older one; watches miss none."""
    add = verdict.add
    revisions: dict[str, int] = {}
    order: dict[str, dict[int, str]] = defaultdict(dict)
    watched: dict[int | str, dict[int, str]] = defaultdict(dict)
    last: dict[int | str, int] = {}
    ended: set[int | str] = set()
    for call in calls:
        if call.f != "watch":
            continue
        client = _client(call)
        last.setdefault(client, 0)
        if not call.ok:
            continue
        number = call.value["revision"]
        if number <= last[client]:
            add("watch", f"the watch of {client} was told {number} behind {last[client]}")
        last[client] = number
        for key, value in call.value["changes"]:
            if key == META_END:
                ended.add(client)
                continue
            watched[client][number] = value
            if revisions.setdefault(value, number) != number:
                add("watch", f"{value} was watched at {revisions[value]} and at {number}")
            order[key][number] = value
    for client in last:
        if client not in ended:
            add("watch", f"the watch of {client} did not come to the end")
        missing = {value for one in watched.values() for value in one.values()}
        missing -= set(watched[client].values())
        if missing:
            add("watch", f"the watch of {client} was not told of {sorted(missing)[:5]}")
    acked: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for call in calls:
        match call.f:
            case "write":
                key, value = call.asked
            case "cas":
                key, (_, value) = call.asked
            case _:
                continue
        done = call.ok and (call.f == "write" or call.value["done"])
        refused = call.ok and not done
        number = revisions.get(value, 0)
        if done and not number:
            add("lost", f"{value} was written to {key}, and no watch was told")
        elif refused and number:
            add("cas", f"{value} was not written to {key}, and stands at {number}")
        elif done and call.revision and call.revision != number:
            add("revision", f"{value} was written at {call.revision}, and watched at {number}")
        if done and number and call.ended is not None:
            acked[key].append((call.ended, number))
        if call.f == "cas" and number:
            before = max((one for one in order[key] if one < number), default=0)
            if order[key].get(before) != call.asked[1][0]:
                add("cas", f"{value} replaced {order[key].get(before)}, not {call.asked[1][0]}")
    for call in calls:
        if call.f == "read" and call.ok and call.value[1] is not None:
            if revisions.get(call.value[1]) != call.revision:
                add("revision", f"{call.value} was read at {call.revision}")
            if call.ended is not None:
                acked[call.asked[0]].append((call.ended, call.revision))
    for key, some in acked.items():
        some.sort()
        times = [time for time, _ in some]
        most, highest = 0, list[int]()
        for _, number in some:
            most = max(most, number)
            highest.append(most)
        for call in calls:
            if call.f == "read" and call.ok and call.asked[0] == key:
                at = bisect_left(times, call.began)
                if at and call.revision < highest[at - 1]:
                    add(
                        "stale",
                        f"the read of {key} by {call.process} at {call.began / 1e9:.3f} found"
                        f" revision {call.revision}; {highest[at - 1]} was known before it began",
                    )


def _client(call: Call) -> int | str:
    return call.process % PROCESSES if isinstance(call.process, int) else call.process


def _name_of(error: object) -> str:
    """The type of an error, as clients write it down; errors of one type are one kind."""
    found = re.match(r"\w+", str(error))
    return found[0] if found else "without a name"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) < 80 else f"{text[:77]}..."
