"""A majority that a reset has left behind, and that is alive: it answers no caller that has seen
the reset partition, whatever is asked and whichever node is asked.

The partition's truth is told by what is in it: rows, a producer and cursors that one side has and
the other has not. So no check here relies on the lineages that it is about.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import pytest

from eventually import eventually
from frames.alone import run
from lowmark.backend.codec import decode, encode
from lowmark.backend.connection import is_left_behind
from lowmark.backend.errors import PartitionReset, ResetsUnheard
from lowmark.backend.port import BESIDE, OF_NONE, OF_PARTITIONS, OF_TABLE, RETRY
from lowmark.backend.protocol import Request, commands_of, encode_request
from lowmark.backend.values import NOBODY, BatchRange, Hold, ReadRange
from lowmark.client import Database, Table
from lowmark.errors import LowmarkError, Unavailable
from lowmark.frames import LowmarkSource
from lowmark.frames.opening import Part, knowing, opened, opened_for, planned
from lowmark.frames.options import Options
from lowmark.group import CopyOutdated, OutcomeUnknown
from lowmark.ids import METASTORE
from lowmark.ledger import Pointer, decode_record
from lowmark.ledger.records import POINTER_PREFIX
from lowmark.metastore import MetastoreOutdated
from lowmark.server.adopting import Adopter
from lowmark.server.service import Service
from lowmark.table import CreateCursor, ProducerForgotten, View
from server.split import COMMON, ONLY_LEFT, ONLY_RESET, PRODUCER, Serving, Split

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fencing")]

Truth = Literal["left", "reset"] | None
"""Which side an answer is of; None: it can't be told from it."""


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Split]:
    """The answer to a reset by mistake: see `Split`."""
    with Split(tmp_path_factory.mktemp("split")) as split:
        split.table.append([{"id": key} for key in COMMON])
        split.reset()
        split.part()
        yield split


@pytest.fixture(autouse=True)
def forgotten(split: Split) -> None:
    split.forget()


def of_view(split: Split, view: View) -> Truth:
    """By the first batch that is not of both: a leader gives no batch the time of another one."""
    time = int(view.time[view.batch_at(len(COMMON))])
    return "reset" if time == split.marks[1] else "left" if time == split.marks[0] else None


class Case(NamedTuple):
    """A call, and how its answer tells of which side it is."""

    arguments: Callable[[Split], tuple[Any, ...]] = lambda split: (split.id, 0)
    named: Callable[[Split], dict[str, Any]] = lambda _: {}
    truth: Callable[[Split, Any], Truth] = lambda *_: None
    why: str = ""
    """Why no answer to this call tells anything of rows."""


def many(split: Split) -> tuple[Any, ...]:
    return split.id, (0,)


def cursor(split: Split) -> tuple[Any, ...]:
    name = f"cursor-{next(split.numbers)}"
    split.proposed = name
    return split.id, {0: CreateCursor(name, 1, "raw", 0)}


def side_of_cursor(split: Split, _: Any) -> Truth:
    """Which copies have the cursor that was asked for last."""

    def sides() -> set[Truth]:
        has = {node: split.proposed in split.copy(node).state.cursors for node in split.holders}
        return {"reset" if node is split.alone else "left" for node in has if has[node]}

    eventually(lambda: bool(sides()))
    (side,) = sides()
    return side


CASES: Final[Mapping[str, Case]] = {
    "appender": Case(why="it sends nothing: `test_a_stream…` has what it sends"),
    "batches": Case(why="it is asked by a ticket: `test_batches…`"),
    "dropped_at": Case(why="of the catalog: `test_nothing_is_asked_of_an_outdated_metastore`"),
    "endpoint_here": Case(why="where a partition may be asked, which the asked node decides"),
    "epoch_of": Case(
        arguments=lambda split: (split.id, PRODUCER),
        truth=lambda _, value: "left" if value == 5 else "reset",
    ),
    "hold": Case(
        arguments=lambda split: (split.id, {0: ReadRange(0, None)}),
        named=lambda _: {"hold": Hold.drawn(), "holder": "a test", "why": "it asks"},
        truth=lambda split, value: of_view(split, value.partitions[0].view),
    ),
    "look_up": Case(
        arguments=lambda split: (split.id, (ONLY_LEFT[0], ONLY_RESET[0])),
        truth=lambda _, value: "left" if value[0] is not None else "reset",
    ),
    "now": Case(why="a time above all that is known, and no row"),
    "now_here": Case(why="as `now`"),
    "propose": Case(arguments=cursor, truth=side_of_cursor),
    "status": Case(arguments=many, truth=lambda split, value: of_view(split, value[0].view)),
    "tail": Case(
        named=lambda _: {"low": 0, "high": len(COMMON)},
        truth=lambda split, value: "reset" if split.alone.data in value.root else "left",
    ),
    "view": Case(why="clients ask `view_since`"),
    "view_since": Case(
        named=lambda _: {"latest": True}, truth=lambda split, value: of_view(split, value[1])
    ),
    "views": Case(arguments=many, truth=lambda split, value: of_view(split, value[0])),
}


def asked(split: Split, node: Serving, call: str, **how: Any) -> tuple[Truth, Any, Any]:
    """What a node answers: of which side, the answer, and the lineages that it tells."""
    case = CASES[call]
    value, told = node.request(call, *case.arguments(split), **case.named(split), **how)
    truth = None
    if not isinstance(value, LowmarkError) and not case.why:
        truth = case.truth(split, value)
        assert truth is not None
    return truth, value, told


ROWS: Final = sorted(call for call, case in CASES.items() if not case.why)


def test_every_call_is_listed() -> None:
    # A call that is added says whose lineages it tells, and what its answer tells of rows.
    assert OF_PARTITIONS | OF_TABLE | OF_NONE == {*RETRY, *BESIDE}
    assert not OF_PARTITIONS & OF_TABLE | OF_NONE & (OF_PARTITIONS | OF_TABLE)
    assert CASES.keys() == OF_PARTITIONS | OF_TABLE


@pytest.mark.parametrize("call", ROWS)
def test_who_has_seen_the_reset_is_not_answered_by_those_that_it_left_behind(
    split: Split, call: str
) -> None:
    for node in [*split.left, split.without]:
        # given a caller that has seen nothing: it is answered by whichever it reaches
        split.forget()
        truth, _, told = asked(split, node, call, lineages={})
        assert truth == "left" or node is split.without
        assert truth == "reset" or not told
        # when a caller has seen what was reset, then it is asked there, or the caller hears why not
        split.forget()
        truth, value, told = asked(split, node, call, lineages=split.seen)
        assert truth == "reset" or isinstance(value, CopyOutdated), (truth, value)
        assert told == split.seen or isinstance(value, CopyOutdated)
    for node in split.left:
        # and a node that asks for one is refused by name: it knows where else to ask
        split.forget()
        truth, value, _ = asked(split, node, call, lineages=split.seen, by_node=True)
        assert truth is None, (truth, value)
        assert is_left_behind(value)
        # as one is by a node that has heard of the reset itself, whatever its caller knows
        node.backend.lineages.learn(split.seen)
        truth, value, _ = asked(split, node, call, lineages={})
        assert truth == "reset" or isinstance(value, CopyOutdated), (truth, value)


@pytest.mark.parametrize("call", sorted({*RETRY, *BESIDE}))
def test_nothing_is_asked_of_an_outdated_metastore(split: Split, call: str) -> None:
    # whatever the call: what tables there are, and where, is in the metastore
    value, _ = split.alone.request(call, lineages={METASTORE: 7})
    assert isinstance(value, MetastoreOutdated)
    assert "was reset in term 7" in value.message


def read_batches(
    split: Split, node: Serving, wanted: BatchRange, lineages: Mapping[str, int] | None
) -> list[bytes]:
    """What a node gives for places in the log."""
    arguments, named = (split.id, 0, (wanted,)), {"held": False, "timeout_s": 5.0}
    cluster = node.backend.info.cluster
    ticket = encode_request(Request(cluster, 7, "batches", arguments, named, lineages))
    try:
        _, messages = node.endpoint_of_data.get(ticket)
        rows = [one[0] if isinstance(one, tuple) else one for one in messages]
    finally:
        node.backend.asked_by(NOBODY)
    return [bytes(command) for batch in rows for command in commands_of(batch)]


def test_batches_of_one_side_are_not_given_for_the_view_of_another(split: Split) -> None:
    # given views of both sides, whose places name other batches
    views = {
        side: node.request("view_since", split.id, 0, latest=True, lineages={})[0][1]
        for side, node in (("left", split.left[0]), ("reset", split.alone))
    }
    assert [views[side].lineage for side in ("left", "reset")] == [0, split.lineage]

    def read(node: Serving, side: str, lineages: Mapping[str, int]) -> list[bytes]:
        wanted = BatchRange.of(views[side], 0, views[side].count)
        return read_batches(split, node, wanted, lineages)

    # then each side gives its own
    left, reset = read(split.left[0], "left", {}), read(split.alone, "reset", {})
    assert left != reset
    # and neither gives anything for the view of the other one
    with pytest.raises(PartitionReset):
        read(split.alone, "left", {})
    split.forget()
    assert read(split.left[0], "reset", split.seen) == reset
    # nor for who has seen more than its own view
    with pytest.raises((PartitionReset, CopyOutdated)):
        read(split.left[0], "left", split.seen)


# -- clients --------------------------------------------------------------------------------------


def ids(table: Table) -> list[int]:
    return sorted(row["id"] for row in table.read().to_pylist())


ALL_LEFT: Final = [*COMMON, *ONLY_LEFT]
ALL_RESET: Final = [*COMMON, *ONLY_RESET]


def test_a_client_that_has_seen_neither_is_answered_by_the_node_that_it_reaches(
    split: Split,
) -> None:
    # the limit: nothing tells this client that there is another group
    with Database(split.connect(split.left[0])) as db:
        assert ids(db["orders"]) == ALL_LEFT
        assert db["orders"].get(ONLY_LEFT[0]) == {"id": ONLY_LEFT[0]}


def test_a_client_that_has_seen_the_reset_reads_nothing_else_wherever_it_goes(
    split: Split,
) -> None:
    # given a client at the node that was reset
    backend = split.connect(split.alone)
    with Database(backend) as db:
        orders = db["orders"]
        assert ids(orders) == ALL_RESET
        assert backend.lineages.of(split.group) == split.lineage
        for _ in range(4):
            # when it goes from node to node, none of which has heard of the reset
            split.forget()
            backend._connection.leave()
            # then whatever it reads is of what was reset
            assert ids(orders) == ALL_RESET
            assert orders.count() == len(ALL_RESET)
            assert orders.get(ONLY_LEFT[0]) is None
            assert orders.get_many([{"id": ONLY_RESET[0]}]) == [{"id": ONLY_RESET[0]}]
            assert orders.read(as_of="now").to_arrow().num_rows == len(ALL_RESET)
            assert "reset" in {one.name for one in orders.cursors.list()}


def test_what_a_client_knew_of_those_that_were_left_behind_is_not_used_any_more(
    split: Split,
) -> None:
    # given a client that has views, an index and a snapshot of those that were left behind
    backend = split.connect(split.left[0])
    with Database(backend) as db:
        orders = db["orders"]
        snapshot, bounded = orders.snapshot(), orders.read()
        past = orders.read(as_of="now")
        assert backend.view(split.id, 0, latest=True).end == len(ALL_LEFT)
        # when it hears of the reset
        backend.lineages.learn(split.seen)
        # then nothing of that is given
        with pytest.raises(PartitionReset, match="partition 0"):
            bounded.to_arrow()
        with pytest.raises(PartitionReset):
            past.to_arrow()
        with pytest.raises(PartitionReset):
            backend._of_now(split.id, {0: replace(bounded._parts[0].view)})
        # and its next view is made anew, not of what it had
        view = backend.view(split.id, 0, latest=True)
        assert (view.end, view.lineage) == (len(ALL_RESET), split.lineage)
        assert ids(orders) == ALL_RESET
        assert snapshot.ends == {0: len(ALL_LEFT)}  # numbers, and nothing of a partition


def test_an_index_of_those_that_were_left_behind_is_made_anew(split: Split) -> None:
    # given a node with an index of its own copy, which is of those that were left behind
    node = split.left[0]
    orders = Database(node.backend)["orders"]
    assert orders.get(ONLY_LEFT[0]) == {"id": ONLY_LEFT[0]}
    # when it hears of the reset
    node.backend.lineages.learn(split.seen)
    # then look-ups find what the reset partition has
    assert orders.get(ONLY_LEFT[0]) is None
    assert orders.get(ONLY_RESET[0]) == {"id": ONLY_RESET[0]}


def test_a_reader_that_follows_goes_on_if_all_that_it_has_read_is_there(split: Split) -> None:
    # given readers that follow, of which one has read rows that both sides have, the other more
    backend = split.connect(split.left[0])
    with Database(backend) as db:
        common = db["orders"].read(follow=True, start={0: 0}, batch_bytes=1)
        beyond = db["orders"].read(follow=True, start={0: 0})
        assert next(common).column("id").to_pylist() == list(COMMON)
        assert sum(next(beyond).num_rows for _ in range(2)) == len(ALL_LEFT)
        # when their client hears of the reset
        backend.lineages.learn(split.seen)
        # then the one goes on with what the reset partition has, and the other one hears of it
        assert next(common).column("id").to_pylist() == list(ONLY_RESET)
        with pytest.raises(PartitionReset, match=f"had come to offset {len(ALL_LEFT)}"):
            list(beyond._next(beyond._parts[0]))


def test_who_has_seen_the_reset_hears_by_name_that_nobody_else_can_answer(split: Split) -> None:
    # given that the reset partition is away: whoever is asked for it is not reached
    backend = split.connect(split.left[0])
    with Database(backend):
        backend.lineages.learn({split.group: split.lineage + 1})
        # when a client that has seen it asks the others, for as long as one of them needs to answer
        heard: list[Unavailable] = []
        for timeout_s in (0.4, 2.0, 10.0, 30.0):
            with pytest.raises(Unavailable) as refused:
                backend.view(split.id, 0, latest=True, timeout_s=timeout_s)
            heard.append(refused.value)
            if isinstance(refused.value, CopyOutdated):
                break
        # then it hears which group was reset, and never gets what the others have
        assert isinstance(heard[-1], CopyOutdated)
        assert f"copy of group {split.group} is no longer a member" in heard[-1].message
        with pytest.raises((CopyOutdated, OutcomeUnknown)):  # a node goes on trying for longer
            backend.propose(split.id, {0: CreateCursor("never", 1, "raw", 0)}, timeout_s=0.3)
        assert not any("never" in split.copy(node).state.cursors for node in split.holders)


def test_no_client_reads_two_truths(split: Split) -> None:
    """Clients, at random, by nodes at random, which pass on what they have no copy of: whoever has
    been given something of the reset partition is never given anything of the others again.
    """
    seed = int(os.environ.get("LOWMARK_SIM_SEED", "1"))
    draw = random.Random(seed)
    reads = [call for call in ROWS if call != "propose"]  # it would change what is read
    answers = dict.fromkeys(("left", "reset", "refused"), 0)
    for _ in range(int(os.environ.get("LOWMARK_FENCE_LIVES", "6"))):
        split.forget()
        known: list[dict[str, int]] = [{} for _ in range(4)]
        has_seen = [False] * 4
        for _ in range(40):
            one, node, call = draw.randrange(4), draw.choice(split.nodes), draw.choice(reads)
            truth, _, told = asked(split, node, call, lineages=known[one])
            assert not (has_seen[one] and truth == "left"), (seed, one, call, node.data)
            has_seen[one] |= truth == "reset"
            known[one] |= told or {}
            answers[truth or "refused"] += 1
            if draw.random() < 0.1:  # it is started again: what it knows is its own copy's
                node.backend.lineages._known = {}
    assert answers["left"] > 10
    assert answers["reset"] > 10


# -- earlier releases -----------------------------------------------------------------------------


def test_a_client_of_an_earlier_release_is_answered_as_before(split: Split) -> None:
    # given one that says nothing of resets
    cluster = split.alone.backend.info.cluster
    body = encode_request(Request(cluster, 7, "views", (split.id, (0,)), {}))
    assert len(decode(body[3:])) == 5
    # then its answers have the parts that they had, and so have the views in them
    try:
        reply = decode(split.alone.endpoint_of_data.act("call", body))
    finally:
        split.alone.backend.asked_by(NOBODY)
    assert len(reply) == 4
    view = reply[2][0]
    assert (view.lineage, len(encode(view))) == (0, len(encode(replace(view, lineage=0))))
    # and the places that it was told of are read
    wanted = BatchRange.of(view, 0, view.count)
    assert len(read_batches(split, split.alone, wanted, None)) == view.count


def test_a_server_of_an_earlier_release_is_asked_only_by_who_knows_of_no_reset(
    split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a client of nodes that know nothing of lineages
    hello = Service.hello

    def earlier(service: Service, body: bytes) -> bytes:
        return msgspec.json.encode(msgspec.json.decode(hello(service, body)) | {"fences": False})

    monkeypatch.setattr(Service, "hello", earlier)
    backend = split.connect(split.left[0])
    with Database(backend) as db:
        asks: list[int] = []
        request = Service.request

        def counted(service: Service, body: bytes) -> Request:
            asks.append(len(decode(body[3:])))
            return request(service, body)

        monkeypatch.setattr(Service, "request", counted)
        # then it says nothing that they do not know
        assert db["orders"].count() >= len(ALL_LEFT)
        assert {*asks} == {5}
        # and when it knows of a reset, it asks none of them
        backend.lineages.learn(split.seen)
        with pytest.raises(ResetsUnheard, match="earlier release"):
            backend.view(split.id, 0, timeout_s=5.0)
        # but of tables that were not reset
        assert backend.catalog(fresh=True).version > 0


# -- appending: from here on, each side has more rows ---------------------------------------------


def test_a_stream_of_rows_goes_where_the_reset_partition_is(split: Split) -> None:
    # given clients with a stream to those that were left behind, one by a node that has no copy
    for node in (split.left[0], split.without):
        split.forget()
        backend = split.connect(node)
        with Database(backend) as db:
            orders = db["orders"]
            some = orders.producer(name=f"p{next(split.numbers)}")
            some.send({"id": 300})
            some.flush()
            # when they hear of the reset
            rows = split.copy(split.alone).view.end
            backend._connection.hears(split.seen)
            # then what they append from then on is there
            orders.append([{"id": 400}])
            assert split.copy(split.alone).view.end == rows + 1
            if node is split.without:
                some.close()
                continue  # it may have asked either side
            # and a producer whose rows were stored by the others hears that by name
            some.send({"id": 301})
            with pytest.raises(ProducerForgotten, match="Read the table to find out"):
                some.flush()
            assert split.copy(split.alone).view.end == rows + 1


def test_a_client_that_appends_by_a_node_without_a_copy_has_seen_the_reset(split: Split) -> None:
    # given a node without a copy, which was told of the reset by the one that it has asked
    split.without.backend.lineages.learn(split.seen)
    backend = split.connect(split.without)
    with Database(backend) as db:
        # when a client appends by it, then the answer tells the client of the reset
        db["orders"].append([{"id": 500}])
        eventually(lambda: backend.lineages.of(split.group) == split.lineage)


def test_a_place_in_rows_that_are_gone_is_not_gone_on_from(split: Split) -> None:
    # given places of a stream in what both sides have, and behind what only one has
    options = {"table": "orders", "node": split.left[0].endpoint}
    reader: Any = LowmarkSource(options).streamReader(LowmarkSource(options).schema())
    left, there = ({0: one.backend.view(split.id, 0)} for one in (split.left[0], split.alone))
    common = reader._offset("c", {0: len(COMMON)}, left)
    beyond = reader._offset("c", {0: left[0].end}, left)
    # when the partition is another one, by the reset
    assert reader._after_resets(beyond, left) == {0: left[0].end}
    assert reader._after_resets(common, there) == {0: len(COMMON)}
    # then the stream does not go on from the one that is in rows that are gone
    with pytest.raises(PartitionReset, match=f"had come to offset {left[0].end}"):
        reader._after_resets(beyond, there)
    reader.stop()


@pytest.mark.release  # `test_a_place_in_rows_that_are_gone…` asks the source what this one does
def test_a_stream_of_spark_hears_that_it_has_read_what_is_gone(
    split: Split, tmp_path: Path
) -> None:
    # given streams that have read all of those that were left behind
    options = {"table": "orders", "startingOffsets": "earliest"}
    at_left = options | {"node": split.left[0].endpoint}
    at_reset = options | {"node": split.alone.endpoint}

    def stream(number: int, options: Mapping[str, str]) -> int:
        place = tmp_path / str(number)
        return sum(run(options, checkpoint=place, into=place / "rows"))

    assert stream(2, at_left) == split.copy(split.left[0]).view.end
    shutil.copytree(tmp_path / "2", tmp_path / "3")
    # when one goes on where the reset partition is, then it hears of it, and reads nothing
    split.forget()
    with pytest.raises(PartitionReset):
        stream(2, at_reset)
    # unless its user has said that it may
    assert stream(3, at_reset | {"failOnDataLoss": "false"}) == 0
    # and a checkpoint that knows of the reset is not answered by the others any more
    assert stream(4, at_reset) == split.copy(split.alone).view.end
    Database(split.alone.backend)["orders"].append([{"id": 600}])
    split.forget()
    assert stream(4, at_left) == 1


def test_tasks_know_what_their_driver_has_heard(split: Split) -> None:
    # given a driver that has seen the reset partition
    rows = Database(split.alone.backend)["orders"].count()
    options = Options.read({"table": "orders", "node": split.alone.endpoint})
    with opened(options) as database:
        assert database["orders"].count() == rows
        parts = planned([Part()], options, database, shows="")
        written = knowing(options, database)
    # when its tasks ask the others, then they are not answered by these
    split.forget()
    for task in (
        opened_for(parts[0], replace(options, node=split.left[0].endpoint)),
        opened(replace(written, node=split.left[0].endpoint)),
    ):
        with task as database:
            assert database["orders"].count() == rows


def test_a_ledger_of_those_that_were_left_behind_is_not_adopted(split: Split) -> None:
    # given a ledger that was made of rows of those that were left behind, and published
    left, alone = (Database(node.backend)["orders"] for node in (split.left[0], split.alone))
    rows = {"left": ids(left), "reset": ids(alone)}
    backend = split.left[0].backend
    time = backend.now(split.id).time
    eventually(lambda: backend.advance_watermark(time).after >= time)
    assert left.compact(engine="local").state == "done"
    (entry,) = backend.range(b"%s%d." % (POINTER_PREFIX, split.id))
    pointer = decode_record(entry.value, Pointer)
    assert (pointer.lineage, pointer.epoch) == (0, 1)
    # when the node that leads the reset partition finds it, as it does if the run has died
    adopter = Adopter(split.alone.backend)
    try:
        assert adopter._see_to(split.id, 0, pointer)
    finally:
        adopter.close()
    # then the partition does not adopt it, and has all of its rows
    assert split.copy(split.alone).state.ledger is None
    assert ids(alone) == rows["reset"]
    # and a run there makes its own, of what is there
    assert alone.compact(engine="local").state == "done"
    ledger = split.copy(split.alone).state.ledger
    assert ledger is not None
    assert ledger.epoch == 2
    assert ids(alone) == rows["reset"]
    # which the others don't adopt either
    assert ids(left) == rows["left"]
    assert {split.copy(node).state.ledger.epoch for node in split.left} == {1}  # type: ignore[union-attr]
