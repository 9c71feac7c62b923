"""All of the torture: `make torture MINUTES=n`.

    python -m torture.run --minutes 10 --seed 7 --history DIR --hosts

Exit code 1 if anything is wrong: then its folder stays, and says where it is.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec

import lowmark
from clusters.places import in_hosts
from clusters.processes import ChildDied, Children, NotInTime
from hosts.hosts import why_none
from lowmark.catalog import AlterZone
from lowmark.metastore import Put
from torture.check import Row, Verdict, check
from torture.client import (
    COLUMNS,
    FINISH_S,
    IDS,
    KEEP,
    META_END,
    TABLE,
    ClientSpec,
    Spec,
    pairs,
    placed,
)
from torture.cluster import Cluster
from torture.history import KINDS, NEMESIS, VERSION, Counts, Recorder, merge, save
from torture.nemesis import Nemesis
from torture.operating import Operator

PARTITIONS = 4
ROLES = (
    ("append", "send", "write", "scan", "read", "tail", "meta-write", "meta-watch"),
    ("append", "write", "scan", "read", "as-of", "tail", "poll", "meta-write", "meta-read"),
)
"""Of each process of clients."""
AS_OF_S = (20.0, 240.0)
"""How old a time may be that clients still ask for: a fifth of the run, within these."""
LAST_IDS = 1_000 * IDS
"""From here on are the ids of the last rows."""
LOOKER = 950
"""The process that reads all rows at each node, when all clients have ended."""


@dataclass(slots=True)
class Outcome:
    """What a run came to."""

    verdict: Verdict
    troubles: dict[str, int] = field(default_factory=dict)
    deeds: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    small_disk: bool = False


def torture(
    folder: Path,
    *,
    seed: int,
    troubles: Sequence[str] | None = None,
    seconds: float = 0.0,
    history: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
    pace_s: float = 0.02,
    dwell_s: float = 0.0,
) -> Outcome:
    """Make these troubles, each for up to `dwell_s` more than it takes clients to go on; or draw
    some, for so many seconds.
    """
    began_ns = time.monotonic_ns()
    random = Random(seed)
    recorder = Recorder(folder / "rows-nemesis.jsonl", began_ns, counted_as="")
    recorder.write(NEMESIS, "info", "history", {"version": VERSION, "partitions": PARTITIONS})
    shortest, longest = AS_OF_S
    as_of_s = min(longest, max(shortest, seconds / 5))
    with ExitStack() as last:
        children = last.enter_context(Children(folder))
        cluster = Cluster(folder, children, recorder)
        last.callback(cluster.unmount)
        last.callback(recorder.close)
        operator = Operator(cluster, recorder, PARTITIONS)
        nemesis = Nemesis(
            cluster,
            operator,
            random,
            lambda: counts_of(folder),
            say,
            dwell_s=dwell_s,
            as_of_s=as_of_s,
        )
        with cluster:
            specs = _specs(folder, cluster, began_ns, seed, pace_s, as_of_s)
            plan = troubles or ()
            logs = _live(
                folder, cluster, children, nemesis, operator, specs, plan, seconds, recorder
            )
        rows = merge(sorted(folder.glob("rows-*.jsonl")))
        meta = merge(sorted(folder.glob("metastore-*.jsonl")))
        deeds = [event for event in rows if event.process == NEMESIS]
        meta = sorted([*deeds, *meta], key=lambda event: event.time)
        if history is not None:
            history.mkdir(parents=True, exist_ok=True)
            save(history / "rows.jsonl", rows)
            save(history / "metastore.jsonl", meta)
        verdict = check(rows, meta, logs[0])
        violations = [*nemesis.violations, *operator.problems, *cluster.problems]
        violations += verdict.violations
        if violations:
            cluster.keep_small_disk()
        return Outcome(
            verdict, nemesis.troubles, cluster.counts, violations, cluster.has_small_disk
        )


def _live(
    folder: Path,
    cluster: Cluster,
    children: Children,
    nemesis: Nemesis,
    operator: Operator,
    specs: list[tuple[str, Path]],
    troubles: Sequence[str],
    seconds: float,
    recorder: Recorder,
) -> list[dict[int, list[Row]]]:
    """From the first call to the last; gives the log of each partition, as each node has it."""
    violations = nemesis.violations
    with lowmark.connect(cluster.addresses[0], timeout_s=60.0) as db:
        db.backend.execute([AlterZone(name="default", replicas=len(cluster.numbers))])
        table = db.create_table(TABLE, COLUMNS, key="id", partitions=PARTITIONS)
        table.cursors.create(KEEP, start="earliest")
    clients = [
        children.start_program(
            [sys.executable, "-m", "torture.client", str(path)],
            name=f"client-{name}",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        for name, path in specs
    ]
    nemesis.go_on("the beginning")
    ends_at = time.monotonic() + seconds
    try:
        for trouble in troubles:
            nemesis.make(trouble)
        while time.monotonic() < ends_at:
            nemesis.make(nemesis.draw())
        cluster.mend_all()
    except (ChildDied, NotInTime) as error:
        violations.append(str(error))
    (folder / "stop").touch()
    _wait(lambda: all((folder / f"idle-{name}").exists() for name, _ in specs))
    _farewell(cluster, operator)
    _wait(lambda: not any(client.alive for client in clients))
    for client in clients:
        if client.alive:
            violations.append(f"the clients {client.name} did not end: {client.said()}")
            continue
        try:
            client.check()
        except ChildDied as error:
            if error.code:
                violations.append(f"the clients {client.name} failed: {client.said()}")
    logs = [
        _log(address, violations, recorder, LOOKER + number)
        for number, address in enumerate(cluster.addresses)
    ]
    if any(log != logs[0] for log in logs):
        violations.append("the nodes do not have the same rows")
    return logs


def _specs(
    folder: Path, cluster: Cluster, began_ns: int, seed: int, pace_s: float, as_of_s: float
) -> list[tuple[str, Path]]:
    number, processes, hot = 0, list[list[ClientSpec]](), list[int]()
    for roles in ROLES:
        some = []
        for role in roles:
            number += 1
            some.append(ClientSpec(number, role, at=number))
            if role == "write":
                hot += [-(number * 100 + one) for one in range(3)]
        processes.append(some)
    found = []
    for index, clients in enumerate(processes):
        spec = Spec(
            name=str(index),
            folder=str(folder),
            addresses=cluster.addresses,
            partitions=PARTITIONS,
            hot_keys=hot,
            clients=clients,
            began_ns=began_ns,
            seed=seed,
            pace_s=pace_s,
            as_of_s=as_of_s,
        )
        path = folder / f"client-{index}.json"
        path.write_bytes(msgspec.json.encode(spec))
        found.append((str(index), path))
    return found


def counts_of(folder: Path) -> dict[str, int]:
    """How often each call came out well, of all clients."""
    total = dict.fromkeys(KINDS, 0)
    for path in folder.glob("*.counts"):
        for f, count in Counts(path).get().items():
            total[f] += count
    return total


def _wait(condition: Callable[[], bool]) -> None:
    """For clients that come to an end; what did not is found out by other ways."""
    ends_at = time.monotonic() + FINISH_S + 30.0
    while not condition() and time.monotonic() < ends_at:
        time.sleep(0.02)


def _farewell(cluster: Cluster, operator: Operator) -> None:
    """The last rows of each partition, and the last value of the metastore."""
    with lowmark.connect(cluster.addresses[0], timeout_s=60.0) as db:
        operator.append(db, "end", first=LAST_IDS)
        db.backend.write([Put(META_END.encode(), b"end")])


def _log(
    address: str, violations: list[str], recorder: Recorder, process: int
) -> dict[int, list[Row]]:
    """All rows of each partition, as a node gives them; a call of a client, too."""
    found: dict[int, list[Row]] = {number: [] for number in range(PARTITIONS)}
    columns = ["id", "seq", "who", "_time", "_partition", "_offset", "_change"]
    gaps = 0
    recorder.write(process, "invoke", "final", None, node=address)
    with lowmark.connect(address, timeout_s=60.0) as db, db[TABLE].read(columns=columns) as reader:
        table, ends = reader.to_arrow(), reader.position
    for key, seq, who, at, number, offset, _ in zip(
        *(table.column(name).to_pylist() for name in columns), strict=True
    ):
        if offset != len(found[number]):
            gaps += 1
        found[number].append(Row(key, seq, who, at))
    said = {
        "end": pairs(ends),
        "rows": placed(table),
        "times": [[number, [row.time for row in part]] for number, part in found.items()],
    }
    recorder.write(process, "ok", "final", said, node=address)
    if gaps:
        violations.append(f"the node at {address} gives offsets with {gaps} gaps")
    return found


def report(outcome: Outcome) -> None:
    """Print what was done and what is wrong."""
    deeds, calls = outcome.deeds, outcome.verdict.calls
    say(
        f"{deeds.get('kill', 0)} kills, {deeds.get('cut', 0)} cuts, {deeds.get('pause', 0)} pauses,"
        f" {deeds.get('jump', 0)} jumps, {deeds.get('fill', 0)} full disks"
    )
    if "packet-lost" in deeds:
        say(f"{deeds['packet-lost']} packets lost between hosts")
    if not outcome.small_disk:
        say("no disk was filled: a small file system can't be mounted here, that takes root")
    say("troubles: " + ", ".join(f"{n} {name}" for name, n in sorted(outcome.troubles.items())))
    reads = sum(calls[f] for f in ("read", "scan", "as-of", "snapshot", "poll", "tail"))
    say(f"{outcome.verdict.rows} rows, {reads} reads")
    say("calls: " + ", ".join(f"{n} {f}" for f, n in sorted(calls.items())))
    slowest = sorted(outcome.verdict.slowest.items(), key=lambda one: -one[1])
    say("slowest: " + ", ".join(f"{f} {took:.1f} s" for f, took in slowest[:6]))
    say(f"{outcome.verdict.errors} calls failed that may: no majority was up, or it may be unknown")
    for violation in outcome.violations:
        say(f"VIOLATION {violation}")
    verdict = outcome.verdict
    for kind, times in sorted(verdict.kinds.items(), key=lambda one: (-one[1], one[0])):
        say(f"{times} violations: {kind}")
    others = len(outcome.violations) - len(verdict.violations)
    say(f"{others + verdict.count} violations")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="torture")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--history", type=Path, default=None)
    parser.add_argument("--troubles", default="", help="by name, instead of drawn ones")
    parser.add_argument("--hosts", action="store_true", help="each node in a host of its own")
    parser.add_argument("--dwell", type=float, default=30.0, help="seconds, of the longest")
    arguments = parser.parse_args()
    seed = time.time_ns() % 1_000_000 if arguments.seed is None else arguments.seed
    folder = Path(tempfile.mkdtemp(prefix="lowmark-torture-"))
    say(f"seed {seed}, in {folder}")
    with ExitStack() as last:
        if arguments.hosts:
            if why_none():
                sys.exit(f"torture: no hosts: {why_none()}")
            (folder / "world").mkdir()
            last.enter_context(in_hosts(folder / "world"))
        outcome = torture(
            folder,
            seed=seed,
            troubles=[one for one in arguments.troubles.split(",") if one],
            seconds=0.0 if arguments.troubles else arguments.minutes * 60,
            history=arguments.history,
            say=say,
            dwell_s=arguments.dwell,
        )
    report(outcome)
    if outcome.violations:
        say(f"{folder} has the nodes and what they said")
        sys.exit(1)
    shutil.rmtree(folder)


def say(text: str) -> None:
    """A line for a person."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
