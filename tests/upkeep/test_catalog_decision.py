"""How far the catalog may be cut, by what nodes answer and the metastore says: a pure decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from lowmark.catalog import Command, CreateIndex, CreateTable, DropTable, History, TableId
from lowmark.catalog.catalog import CatalogVersion
from lowmark.catalog.commands import INITIAL_COMMANDS, evaluate
from lowmark.catalog.history import TOKEN_BYTES, Update, apply_update
from lowmark.catalog.index_commands import MakeIndexAvailable, StartBuildingIndex
from lowmark.placement import Keys, PartitionId
from lowmark.placement.assignments import Assignments
from lowmark.runtime import HybridTime
from lowmark.upkeep.catalog_decision import (
    MARGIN_MS,
    SHOWN_MAX,
    Decision,
    Holder,
    Lagging,
    Minimums,
    Seen,
    decide,
    least_published,
)
from table.world import log_table, ms

NODES = {1: "n1", 2: "n2", 3: "n3"}


def history(*changes: Command | Sequence[Command]) -> History:
    """Version N is in force from N × 10 ms on."""
    made = History()
    for change in (INITIAL_COMMANDS, *changes):
        commands = tuple(change) if isinstance(change, Sequence) else (change,)
        version = made.latest.version + 1
        update = Update(
            version=CatalogVersion(version),
            delay_ms=0,
            author=1,
            token=bytes(TOKEN_BYTES),
            entries=evaluate(made.latest, commands).entries,
        )
        made.add(apply_update(made.latest, update, time=HybridTime(ms(10 * version))))
    return made


def tables(count: int, *, partitions: int = 1) -> list[CreateTable]:
    return [log_table(f"t{number}", partitions=partitions) for number in range(count)]


def tables_named(name: str, count: int) -> list[CreateTable]:
    return [log_table(f"{name}{number}") for number in range(count)]


def at_home(made: History, *, nodes: tuple[int, ...] = (1, 2, 3)) -> dict[PartitionId, Keys]:
    """Every table of the latest version is on these nodes."""
    return {
        PartitionId(table.id, number): Keys(stable=Assignments(nodes, 1))
        for table in made.latest.all_tables()
        for number in range(table.partitions)
    }


def answer(made: History, required_ms: int, *, begin_ms: int = 1_000) -> Minimums:
    """A node that speaks for all copies, one of which has published as little as this."""
    groups = {int(table.id): list(range(table.partitions)) for table in made.latest.all_tables()}
    lagging: tuple[Lagging, ...] = ()
    if groups:
        first, *others = groups
        lagging = (
            Lagging(first, 0, ms(required_ms)),
            *(Lagging(other, 0, ms(900)) for other in others),
        )
    return Minimums(ms(begin_ms), ms(required_ms), groups, lagging, watermark=ms(900))


def seen(made: History, *required_ms: int, **more: object) -> Seen:
    """Three nodes, or as many as there are times; the watermark is at 900 ms."""
    needed = required_ms or (900, 900, 900)
    values = Seen(
        history=made,
        now=ms(1_000),
        watermark=ms(900),
        nodes=NODES,
        answers={node: answer(made, one) for node, one in zip(NODES, needed, strict=True)},
        assignments=at_home(made),
    )
    return replace(values, **more)  # type: ignore[arg-type]


def with_answer(made: History, second: Minimums) -> Seen:
    """The second node has answered with this."""
    whole = seen(made)
    return replace(whole, answers={**whole.answers, 2: second})


def kinds(decision: Decision) -> list[tuple[str, int]]:
    return [(one.kind, one.version) for one in decision.held_by]


def of(found: Minimums, **more: object) -> Minimums:
    return msgspec.structs.replace(found, **more)


def test_the_cut_goes_to_the_version_in_force_at_the_least_of_what_nodes_need() -> None:
    # given three nodes that need the catalog as of 52, 73 and 34 ms
    made = history(*tables(8))
    decision = decide(seen(made, 52, 73, 34))
    # then version 3, which was in force at 34 ms, is the first that stays
    assert decision.version == 3
    assert kinds(decision) == [("log replay", 3)]
    # and when history was cut there, the same answers cut nothing more, and are no error
    made.cut(3)
    assert decide(seen(made, 52, 73, 34)).version == 3
    assert decide(seen(made, 30, 30, 30)).version == 3


def test_the_version_in_force_at_the_watermark_always_stays() -> None:
    made = history(*tables(8))
    decision = decide(seen(made, watermark=ms(55)))
    assert decision.version == 5
    assert kinds(decision) == [("history", 5)]


def test_a_table_that_keeps_its_past_for_longer_keeps_the_catalog_of_that_time() -> None:
    # given a table whose rows can be read as of a day ago, or of 5 ms and a margin before now
    for history_ms, expected in ((86_400_000, 1), (5, 3)):
        made = history(*tables(2), log_table("own", options={"history": f"{history_ms} ms"}))
        decision = decide(seen(made, now=ms(MARGIN_MS + 5 + 32)))
        assert decision.version == expected
        assert kinds(decision) == [("table history", expected)]
    # and of one whose past is shorter than the watermark's, nothing more
    made = history(*tables(2), log_table("own", options={"history": "0 ms"}))
    assert decide(seen(made, now=ms(MARGIN_MS + 1_000))).version == 4


def test_the_present_stays_also_when_nothing_else_needs_it() -> None:
    # given a watermark that is as far as the clock, and a version that is not in force yet
    made = history(*tables(8))
    decision = decide(seen(made, 85, 85, 85, now=ms(85), watermark=ms(85)))
    assert (decision.version, decision.present) == (8, 8)
    assert decision.holders == ()


@pytest.mark.parametrize("extra", [{1: [5, 6]}, {77: [0]}], ids=["partitions", "table"])
def test_a_node_may_speak_for_more_than_it_should_have(extra: dict[int, list[int]]) -> None:
    made = history(*tables(8))
    more = seen(made)
    spoke = of(more.answers[2], groups={**more.answers[2].groups, **extra})
    decision = decide(replace(more, answers={**more.answers, 2: spoke}))
    assert decision.version == 9


def test_a_node_that_holds_nothing_is_no_obstacle() -> None:
    made = history(*tables(8))
    none = Minimums(ms(1_000), ms(900), {}, watermark=ms(900))
    all_four = seen(made, nodes={**NODES, 4: "n4"})
    assert decide(replace(all_four, answers={**all_four.answers, 4: none})).version == 9


@pytest.mark.parametrize("required", [(0, 0, 0), (1, 0, 0), (1, 1, 1)])
def test_nodes_that_need_all_of_it_keep_all_of_it(required: tuple[int, int, int]) -> None:
    made = history(*tables(8))
    made.cut(2)
    decision = decide(seen(made, *required))
    assert decision.version == 2
    assert {one.kind for one in decision.held_by} == {"log replay"}
    # and they are named, with what to do
    assert decision.held_by[0].holder == "partition 0 of public.t0 at node n1"
    assert "snapshot" in decision.held_by[0].hint


@pytest.mark.parametrize("published_ms", [52, 0], ids=["little", "nothing"])
def test_the_lowest_copy_of_each_table_decides_however_many_copies_are_below_it(
    published_ms: int,
) -> None:
    # given copies by the hundred that have published nothing, of a table of version 8
    made = history(*tables(6), log_table("many", partitions=300), *tables_named("late", 3))
    many = made.latest.all_tables()[6].id
    copies = [Lagging(many, number, 0) for number in range(300)]
    # and one of t3, which version 5 has made, that has published as little as this
    lower = Lagging(made.latest.all_tables()[3].id, 0, ms(published_ms))
    whole = answer(made, 900)
    # when a node answers with what it has of all of them
    several = [one for one in whole.lagging if one.table not in {many, lower.table}]
    lagging = tuple(least_published([*copies, *several, lower]))
    decision = decide(with_answer(made, of(whole, required=0, lagging=lagging)))
    # then that one decides, and is named; and an answer is not as long as there are copies
    assert decision.version == 5
    assert [one.holder for one in decision.held_by] == ["partition 0 of public.t3 at node n2"]
    assert len(lagging) < SHOWN_MAX + len(whole.groups)


def test_a_node_that_has_not_heard_of_the_watermark_holds_beside_copies_that_hold_less() -> None:
    # given a node that knows the watermark of 34 ms, and a copy there that needs version 8
    made = history(*tables(8))
    late = made.latest.all_tables()[6].id
    whole = answer(made, 900)
    lagging = tuple(
        msgspec.structs.replace(one, published=0) if one.table == late else one
        for one in whole.lagging
    )
    behind = of(whole, required=0, lagging=lagging, watermark=ms(34))
    # then it keeps what reads as of a time need there
    decision = decide(with_answer(made, behind))
    assert decision.version == 3
    assert [(one.kind, one.holder) for one in decision.held_by] == [("node behind", "node n2")]
    # and nothing when it has heard of it
    assert decide(with_answer(made, of(behind, watermark=ms(900)))).version == 8


def test_what_a_node_of_an_earlier_release_leaves_out_counts_as_the_last_that_it_lists() -> None:
    # given an answer as nodes gave it once: the copies that published least, of all tables
    made = history(*tables(8), log_table("many", partitions=40))
    many = made.latest.all_tables()[8].id
    listed = [Lagging(many, number, ms(number)) for number in range(61, 81)]
    whole = answer(made, 900)
    before = msgspec.msgpack.encode(
        [whole.begin, ms(61), whole.groups, [msgspec.to_builtins(one) for one in listed], ""]
    )
    # when it is read today
    old = msgspec.msgpack.decode(before, type=Minimums)
    decision = decide(with_answer(made, old))
    # then the version of the least is kept, and other tables count as if they were no better
    assert decision.version == 6
    left_out = [one for one in decision.holders if "earlier release" in one.why]
    assert {one.version for one in left_out} == {8, 9}
    assert "partition 0 of public.t0 at node n2" in {one.holder for one in left_out}
    # and what it does not list of tables holds as much as what it lists, if that is nothing at all
    none = [Lagging(many, number, 0) for number in range(20)]
    unpublished = of(old, required=0, lagging=tuple(none))
    assert decide(with_answer(made, unpublished)).version == 1


def test_a_node_of_an_earlier_release_reads_what_is_answered_today() -> None:
    class Before(msgspec.Struct, array_like=True):
        begin: int
        required: int
        groups: dict[int, list[int]]
        lagging: tuple[Lagging, ...] = ()
        transaction: str = ""

    now = answer(history(*tables(3)), 52)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(now), type=Before)
    assert (read.required, read.groups, read.lagging) == (now.required, now.groups, now.lagging)


def test_a_silent_node_keeps_all_and_nothing_is_carried_to_the_others() -> None:
    made = history(*tables(8))
    before = seen(made)
    answers = {node: one for node, one in before.answers.items() if node != 3}
    decision = decide(replace(before, answers=answers, silent={3: "nothing came"}))
    assert (decision.version, decision.begin) == (1, 0)
    assert [(one.holder, one.kind) for one in decision.held_by] == [("node n3", "no answer")]


def test_a_transaction_keeps_the_version_of_its_beginning() -> None:
    made = history(*tables(8))
    before = seen(made)
    old = of(before.answers[2], begin=ms(41), transaction="transaction 7")
    decision = decide(replace(before, answers={**before.answers, 2: old}))
    assert (decision.version, decision.begin) == (4, ms(41))
    assert decision.held_by[0].holder == "transaction 7 at node n2"


def test_an_index_that_is_not_built_keeps_the_version_that_registered_it() -> None:
    # given an index that is registered in version 4, then built, then available
    columns = ("note",)
    steps: list[Command] = [
        *tables(2),
        CreateIndex(name="i", table="t0", columns=columns),
        *[log_table(f"more{number}") for number in range(3)],
    ]
    made = history(*steps)
    index = made.latest.all_indexes()[0]
    building = history(*steps, StartBuildingIndex(index_id=index.id))
    # when it is registered, and when it is being built
    for status, now in (("registered", made), ("building", building)):
        decision = decide(seen(now))
        # then the versions below its own go, and no others
        assert decision.version == 4
        assert kinds(decision) == [("index", 4)]
        assert status in decision.held_by[0].why
    # when it is available
    steps.append(StartBuildingIndex(index_id=index.id))
    steps.append(MakeIndexAvailable(index_id=index.id))
    made = history(*steps)
    # then it holds nothing, whatever it was in the versions that go
    assert decide(seen(made)).version == made.latest.version


def test_a_copy_that_no_answer_contained_keeps_the_first_version_with_its_table() -> None:
    # given t3, which version 5 has made, and a node that does not speak for one of its partitions
    made = history(*tables(8, partitions=2))
    before = seen(made)
    table = made.latest.all_tables()[3].id
    for gone in ([0], []):
        groups = {**before.answers[2].groups, table: gone}
        decision = decide(
            replace(before, answers={**before.answers, 2: of(before.answers[2], groups=groups)})
        )
        assert decision.version == 5
        assert {one.kind for one in decision.held_by} == {"missing copy"}
        assert decision.held_by[-1].holder == "partition 1 of public.t3 at node n2"
    # when it speaks for it again
    assert decide(before).version == 9


def test_a_copy_that_is_damaged_says_why_its_node_does_not_speak_for_it() -> None:
    made = history(*tables(2))
    before = seen(made)
    table = made.latest.all_tables()[0].id
    groups = {one: some for one, some in before.answers[1].groups.items() if one != table}
    broken = of(
        before.answers[1], groups=groups, lagging=(Lagging(table, 0, 0, "it is quarantined"),)
    )
    decision = decide(replace(before, answers={**before.answers, 1: broken}))
    assert decision.version == 2
    assert "it is quarantined" in decision.held_by[0].why
    assert "rebuild" in decision.held_by[0].hint


def test_a_node_outside_of_the_topology_keeps_what_it_should_hold() -> None:
    # given assignments that name node 4, which is down
    made = history(*tables(8))
    down = seen(made, assignments=at_home(made, nodes=(1, 2, 4)), down={4: "n4"})
    decision = decide(down)
    # then versions below the first one with a table go
    assert decision.version == 2
    assert {one.kind for one in decision.held_by} == {"node down"}
    assert decision.held_by[0].holder.endswith("at node n4")
    assert "is not in the topology" in decision.held_by[0].why
    assert "lowmark node remove" in decision.held_by[0].hint
    # and the rest does when it is back
    up = replace(down, nodes={**NODES, 4: "n4"}, answers={**down.answers, 4: down.answers[1]})
    assert decide(up).version == 9


def test_a_table_without_nodes_keeps_the_version_that_it_is_placed_by() -> None:
    made = history(*tables(8))
    homes = at_home(made)
    del homes[PartitionId(made.latest.all_tables()[4].id, 0)]
    decision = decide(seen(made, assignments=homes))
    assert decision.version == 6
    assert "assigned to no node" in decision.held_by[0].why


def test_a_dropped_table_without_copies_and_assignments_holds_nothing() -> None:
    made = history(*tables(4), DropTable(name="t1"), *[log_table(f"m{n}") for n in range(2)])
    assert decide(seen(made)).version == made.latest.version


def test_a_dropped_table_is_named_by_its_id_while_its_copies_are_there() -> None:
    made = history(*tables(4), DropTable(name="t1"))
    table = made.version(5).all_tables()[1].id
    homes = at_home(made) | {PartitionId(table, 0): Keys(stable=Assignments((1, 9), 1))}
    decision = decide(seen(made, assignments=homes))
    assert decision.version == 3
    assert f"table {table}, which was dropped" in decision.held_by[0].holder


@pytest.mark.parametrize("which", ["pending", "planned"])
def test_a_rebalance_keeps_the_version_that_it_was_computed_for(which: str) -> None:
    made = history(*tables(8))
    made.cut(2)
    homes = at_home(made)
    moved = PartitionId(made.latest.all_tables()[0].id, 0)
    for version, expected in ((6, 6), (2, 2), (1, 2)):
        sets = {"pending": Assignments((1, 2, 3), 8), which: Assignments((1, 2, 3), version)}
        moving = msgspec.structs.replace(homes[moved], **sets)
        decision = decide(
            seen(made, assignments={**homes, moved: moving}, moved_at=lambda _: 12_345)
        )
        assert decision.version == expected
        assert kinds(decision) == [("rebalance", expected)]
        assert decision.held_by[0].since_ms == 12_345
    # and stable sets hold nothing, however old their version is: replicas altered, then a cut
    assert decide(seen(made, assignments=homes)).version == 9


def test_a_run_of_compaction_keeps_the_version_that_it_was_planned_with() -> None:
    made = history(*tables(8))
    run = Holder(holder="run 1 of t0", kind="run", version=7, since_ms=5, why="it is running")
    decision = decide(seen(made, runs=[run]))
    assert (decision.version, decision.held_by[0].holder) == (7, "run 1 of t0")
    assert "cancel" in decision.held_by[0].hint


def test_of_several_holders_the_lowest_decides_and_all_are_named_in_order() -> None:
    made = history(*tables(8))
    run = Holder(holder="run 1 of t0", kind="run", version=7, since_ms=5, why="it is running")
    decision = decide(seen(made, 900, 900, 52, watermark=ms(84), runs=[run]))
    assert decision.version == 5
    assert [(one.kind, one.version) for one in decision.holders] == [
        ("log replay", 5),
        ("run", 7),
        ("history", 8),
    ]


def test_the_first_version_is_never_below_the_earliest() -> None:
    # given times before the earliest version that is left
    made = history(*tables(8))
    made.cut(6)
    decision = decide(seen(made, 10, 10, 10, watermark=ms(20)))
    assert decision.version == 6
    assert decision.goal == made.earliest.activates_at
    assert TableId(1) < made.earliest.next_id
