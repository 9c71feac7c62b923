"""The place of ledgers is gone, in every way: what is still answered, what is refused, by which
name; and that all of it answers again when the place is back.

What is expected is the table in docs/guide/operate.md, row by row.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lowmark
from docs.pages import tables
from eventually import eventually
from ledger.remote import Remote, put_behind
from lowmark import errors
from lowmark.cli.app import app
from lowmark.client import Database, Table
from lowmark.errors import GapFound, LedgerLost, LedgersUnseen, LowmarkError, OtherLedgers
from lowmark.node import Settings, load_settings

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("store-lost")]

GUIDE = "../guide/operate.md"
HEADING = "When the store is lost"
COLUMNS = {"id": "string", "v": "int64"}
KEYS, ROWS, TAIL = 12, 24, 3
"""How many keys are compacted, how many rows they have, and how many keys only the backlog has."""


def settings(place: Path) -> Settings:
    """History is exact for no time at all, so everything may be compacted at once."""
    return load_settings(
        arguments={
            "watermark": {"availability_ms": 0},
            "ledger": {"grace_ms": 0, "location": str(place)},
        }
    )


def rows(keys: range, value: int) -> list[dict[str, Any]]:
    return [{"id": f"k{number}", "v": value} for number in keys]


def compacted(db: Database, *names: str) -> list[Table]:
    """Tables with a ledger; of one that is named so, the backlog is cut, and has the rest."""
    found = []
    for name in names:
        table = db.create_table(name, COLUMNS, key="id", partitions=1)
        table.append(rows(range(KEYS), 0))
        found.append(table)
    settle(db, *found)
    return found


def settle(db: Database, *names: Table) -> None:
    """Let the low watermark pass all rows, and compact them."""
    for table in names:

        def passed(table: Table = table) -> bool:
            db.advance_watermark()
            return not table.compact(engine="local", dry_run=True).too_young_rows

        eventually(passed)
        assert table.compact(engine="local", trim=table.name.endswith("cut")).state == "done"


class Shop:
    """Two tables in a place of ledgers, which can be lost; and another database's place."""

    def __init__(self, path: Path) -> None:
        self.path, self.place, self.aside = path / "data", path / "place", path / "aside"
        self.older, self.others = path / "older", path / "others"
        with lowmark.open(path / "other", settings=settings(self.others)) as other:
            compacted(other, "theirs_cut", "theirs")  # under the same numbers
        self.db = lowmark.open(self.path, settings=settings(self.place))
        self.cut, self.kept = compacted(self.db, "first_cut", "second")
        shutil.copytree(self.place, self.older)
        for table in (self.cut, self.kept):
            table.append(rows(range(KEYS), 1))
        settle(self.db, self.cut, self.kept)
        for table in (self.cut, self.kept):
            table.append(rows(range(KEYS, KEYS + TAIL), 2))
        self._system = self.db.backend.store._system

    @property
    def tables(self) -> tuple[Table, Table]:
        return self.cut, self.kept

    def forget(self) -> None:
        """Have nothing open, as a process that has just started."""
        self.db._compactor.ledgers.forget_all()

    # -- ways to lose it ------------------------------------------------------------------------

    def no_answer(self) -> None:
        remote = Remote()
        put_behind(self.db.backend.store, remote)
        remote.broken = "all"

    def empty(self) -> None:
        self.place.rename(self.aside)
        self.place.mkdir()

    def not_mounted(self) -> None:
        self.place.rename(self.aside)

    def anothers(self) -> None:
        self.place.rename(self.aside)
        shutil.copytree(self.others, self.place)

    def one_missing(self) -> None:
        shutil.copytree(self.place, self.aside)
        for table in self.tables:
            shutil.rmtree(self.place / f"table-{table.descriptor.id}" / "0")

    def older_state(self) -> None:
        self.place.rename(self.aside)
        shutil.copytree(self.older, self.place)

    def back(self) -> None:
        store = self.db.backend.store
        store._system, store.local = self._system, True
        if self.aside.exists():
            shutil.rmtree(self.place, ignore_errors=True)
            self.aside.rename(self.place)

    def files(self) -> set[Path]:
        return {one for one in self.place.rglob("*") if one.is_file()}


WAYS: Mapping[str, Callable[[Shop], None]] = {
    "no answer": Shop.no_answer,
    "empty": Shop.empty,
    "another database's": Shop.anothers,
    "one ledger is missing": Shop.one_missing,
    "older than the partitions": Shop.older_state,
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    shop = Shop(tmp_path_factory.mktemp("lost"))
    with shop.db:
        yield shop


def followed(table: Table, **how: Any) -> list[str]:
    """As many keys of a reader that follows as are there."""
    found: list[str] = []
    with closing(table.read(follow=True, **how)) as reader:
        while f"k{KEYS + TAIL - 1}" not in found:
            found += next(reader).column("id").to_pylist()
    return found


def command(shop: Shop, *words: str, code: int = 0) -> Any:
    done = invoked(shop, *words, "--json")
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def invoked(shop: Shop, *words: str) -> Any:
    """A command beside this process, with the same settings."""
    same = {
        "LOWMARK_WATERMARK_AVAILABILITY_MS": "0",
        "LOWMARK_LEDGER_GRACE_MS": "0",
        "LOWMARK_LEDGER_LOCATION": str(shop.place),
    }
    loggers = logging.getLogger(), logging.getLogger("lowmark")
    before = [(one, one.handlers[:], one.level, one.propagate) for one in loggers]
    try:
        return CliRunner().invoke(app, [*words, "--data", str(shop.path)], env=same)
    finally:  # it is another process's, as a rule, and logs to its own stderr
        for one, handlers, level, propagate in before:
            one.handlers[:], one.propagate = handlers, propagate
            one.setLevel(level)


def in_ledger(table: Table) -> str:
    """A key whose last row is not in the backlog; of a backlog that is whole, one without a row."""
    return "k3" if table.name.endswith("cut") else "no such key"


ALL_KEYS = [f"k{number}" for number in range(KEYS + TAIL)]
NEW_KEYS = ALL_KEYS[KEYS:]


def state(found: list[dict[str, Any]]) -> dict[str, int]:
    return {row["id"]: row["v"] for row in found}


RIGHT = dict.fromkeys(ALL_KEYS[:KEYS], 1) | dict.fromkeys(NEW_KEYS, 2)


def check_append(shop: Shop, table: Table) -> None:
    assert table.append(rows(range(KEYS, KEYS + TAIL), 2)).parts[0].rows == TAIL


def check_get(shop: Shop, table: Table) -> None:
    assert table.get(NEW_KEYS[0]) == {"id": NEW_KEYS[0], "v": 2}


def check_get_from_ledger(shop: Shop, table: Table) -> None:
    key = in_ledger(table)
    assert table.get(key) == ({"id": key, "v": 1} if key in RIGHT else None)
    assert table.get_many([NEW_KEYS[0], key]) == [table.get(NEW_KEYS[0]), table.get(key)]


def check_read(shop: Shop, table: Table) -> None:
    first = ROWS if table.name.endswith("cut") else 0
    found = table.read(start={0: first}).to_pylist()
    assert state(found) == (state(rows(range(KEYS, KEYS + TAIL), 2)) if first else RIGHT)
    assert set(NEW_KEYS) <= set(followed(table, start={0: first}))


def check_compacted(shop: Shop, table: Table) -> None:
    assert state(table.read(compacted=True).to_pylist()) == RIGHT
    assert set(followed(table, compacted=True)) == set(ALL_KEYS)


def check_as_of(shop: Shop, table: Table) -> None:
    found = table.read(as_of="now").to_pylist()
    assert len(found) == len(RIGHT)
    assert state(found) == RIGHT


def check_count(shop: Shop, table: Table) -> None:
    assert table.count() == len(RIGHT)


def check_explain(shop: Shop, table: Table) -> None:
    assert table.explain().partitions[0].horizon == ROWS


def check_explain_key(shop: Shop, table: Table) -> None:
    key = in_ledger(table)
    assert table.explain(key).row == ({"id": key, "v": 1} if key in RIGHT else None)


def check_compact(shop: Shop, table: Table) -> None:
    shop.db.advance_watermark()
    assert table.compact(engine="local", rewrite=True).state == "done"


def check_verify(shop: Shop, table: Table) -> None:
    [verdict] = table.verify_ledgers()
    if not verdict.sound:
        assert [one.missing for one in verdict.problems] == [True]
        raise Named("names the files")


def check_rebuild(shop: Shop, table: Table) -> None:
    [rebuilt] = table.rebuild_ledger()
    assert rebuilt.source in {"sound", "backlog"}


def check_sweep(shop: Shop, table: Table) -> None:
    before = shop.files()
    assert table.sweep(dry_run=True) == []
    assert table.sweep() == []
    assert shop.files() == before


def check_list(shop: Shop, table: Table) -> None:
    listed = command(shop, "table", "list")
    assert {one["table"].rpartition(".")[2] for one in listed} >= {table.name}
    assert command(shop, "status")["tables"]


def check_show(shop: Shop, table: Table) -> None:
    [shown] = table.ledgers()
    assert shown.adopted is not None
    if shown.manifest is None:
        assert str(shop.place) in shown.problem
        raise Named("names the problem")


class Named(Exception):
    """An answer that says what is wrong."""


CHECKS: Mapping[str, Callable[[Shop, Table], None]] = {
    "`append`": check_append,
    "`get` of a key whose last row is in the backlog": check_get,
    "`get` of any other key": check_get_from_ledger,
    "`read` and `read --follow` of what is in the backlog": check_read,
    "`read --compacted`, with `--follow`, too": check_compacted,
    "`read --as-of`": check_as_of,
    "`count`": check_count,
    "`explain TABLE`": check_explain,
    "`explain TABLE` of a key whose last row is not in the backlog": check_explain_key,
    "`compact`": check_compact,
    "`ledger verify`": check_verify,
    "`ledger rebuild` of rows that were cut": check_rebuild,
    "`ledger rebuild` of rows that are in the backlog, too": check_rebuild,
    "`ledger sweep`": check_sweep,
    "`table list`, `status`": check_list,
    "`ledger show`": check_show,
}
"""The rows of the table. Each fails if what it is answered is not all, or not right."""


@cache
def told() -> dict[str, dict[str, str]]:
    """The guide's table: what is done, in which way it is lost, and what becomes of that."""
    [table] = [one for one in tables(GUIDE) if one.heading == HEADING]
    return {row[0]: dict(zip(table.columns[1:], row[1:], strict=True)) for row in table.rows}


def outcome(check: Callable[[Shop, Table], None], shop: Shop, table: Table) -> str:
    """As the table has it."""
    try:
        check(shop, table)
    except Named as named:
        return str(named)
    except LowmarkError as error:
        refused = error
    else:
        return "answers"
    name = type(refused).__name__
    assert getattr(errors, name) is type(refused)
    assert re.search("`lowmark ledger|the store|accept_loss", refused.hint), refused.hint
    return f"`{name}`"


def test_the_guide_has_each_way_and_each_call() -> None:
    assert list(told()) == list(CHECKS)
    assert {tuple(one) for one in told().values()} == {tuple(WAYS)}


def of_rows(what: str, shop: Shop) -> list[Table]:
    """The tables that a row of the guide's table is about."""
    if what == "`ledger rebuild` of rows that were cut":
        return [shop.cut]
    if what == "`ledger rebuild` of rows that are in the backlog, too":
        return [shop.kept]
    return [*shop.tables]


@pytest.mark.parametrize("way", WAYS)
def test_what_a_lost_store_still_answers_and_by_which_name_it_refuses_the_rest(
    shop: Shop, way: str
) -> None:
    # given a process that has nothing of the ledgers open
    shop.forget()
    before = shop.files()
    # when the store is lost
    WAYS[way](shop)
    theirs = shop.files()
    changed = False
    try:
        for what, check in CHECKS.items():
            for table in of_rows(what, shop):
                if not changed and told()[what][way] == "answers" and "rebuild" in what:
                    changed = True  # the last that is done: it makes what is missing
                    continue
                # then it is answered or refused as the guide has it
                assert (what, outcome(check, shop, table)) == (what, told()[what][way])
                shop.forget()
        # and nothing was removed, nor written where it does not belong
        assert shop.files() >= theirs
        ours = told()["`ledger sweep`"][way] == "answers"  # there, a run that failed left its mark
        assert [one for one in shop.files() - theirs if not ours or one.name != "begun"] == []
    finally:
        shop.back()
    # when it is back, then all is as before, without a restart
    assert shop.files() == before
    for what, check in CHECKS.items():
        for table in of_rows(what, shop):
            if check is not check_compact:  # it would make other files
                assert (what, outcome(check, shop, table)) == (what, "answers")


@pytest.mark.parametrize("way", WAYS)
def test_what_a_process_has_open_it_may_answer_and_never_a_part_of_it(shop: Shop, way: str) -> None:
    # given a process that has read all of the ledgers before
    for table in shop.tables:
        for warm in (check_get_from_ledger, check_compacted, check_as_of):
            warm(shop, table)
    # when the store is lost
    WAYS[way](shop)
    try:
        for (what, check), table in itertools.product(CHECKS.items(), shop.tables):
            if "rebuild" in what or check is check_compact:
                continue
            # then each answer is whole, or it is refused as if nothing had been read
            assert outcome(check, shop, table) in {"answers", told()[what][way]}, what
    finally:
        shop.back()
    for table in shop.tables:
        check_compacted(shop, table)


def test_a_reader_half_way_ends_by_name_or_with_all_rows(shop: Shop) -> None:
    shop.forget()
    with closing(shop.cut.read(compacted=True, batch_bytes=1)) as reader:
        found = next(reader).column("id").to_pylist()
        shop.empty()
        try:
            try:
                for batch in reader:
                    found += batch.column("id").to_pylist()
            except LedgersUnseen:
                pass  # it is not told that this was all
            else:
                assert set(found) == set(ALL_KEYS)
        finally:
            shop.back()
    check_compacted(shop, shop.cut)


def test_a_folder_that_is_not_mounted_is_the_same_as_an_empty_one(shop: Shop) -> None:
    shop.forget()
    shop.not_mounted()
    try:
        for what in ("`read --compacted`, with `--follow`, too", "`compact`", "`ledger sweep`"):
            assert outcome(CHECKS[what], shop, shop.cut) == told()[what]["empty"]
        assert not shop.place.exists()
    finally:
        shop.back()
    check_compacted(shop, shop.cut)


def test_what_the_backlog_has_is_rebuilt_at_an_older_state(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.db:
        # given a store that came back as it was some time ago
        shop.forget()
        shop.older_state()
        with pytest.raises(LedgerLost):
            shop.kept.count()
        # when its ledger is rebuilt, then all rows are there that the backlog has, too
        assert [one.source for one in shop.kept.rebuild_ledger()] == ["backlog"]
        check_compacted(shop, shop.kept)
        # and what only the newer ledger had is named, and nothing is changed
        assert outcome(check_rebuild, shop, shop.cut) == "`RowsUnrecoverable`"
        with pytest.raises(LedgerLost):
            shop.cut.count()
        # and goes when that is accepted; a read says so
        [rebuilt] = shop.cut.rebuild_ledger(accept_loss=True)
        assert rebuilt.lost
        with pytest.raises(GapFound):
            shop.cut.read(compacted=True).to_arrow()


def test_a_place_that_is_lost_for_good_is_taken_anew_by_a_command(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.db:
        # given a store that is empty, and stays so
        shop.forget()
        shop.empty()
        with pytest.raises(LedgersUnseen) as unseen:
            shop.kept.rebuild_ledger()
        assert "`lowmark ledger location --claim`" in unseen.value.hint
        # when it is claimed, as the hint has it
        command(shop, "ledger", "location", "--claim")
        # then what is not there is lost, and made again as far as its rows are left
        with pytest.raises(LedgerLost):
            shop.kept.count()
        shop.kept.rebuild_ledger()
        check_compacted(shop, shop.kept)
        shop.cut.rebuild_ledger(accept_loss=True)
        check_get(shop, shop.cut)
        # and another database's place is never taken
        shutil.rmtree(shop.place)
        shutil.copytree(shop.others, shop.place)
        said = invoked(shop, "ledger", "location", "--claim")
        assert said.exit_code != 0
        assert "another database" in said.output
        assert (shop.place / "database").read_text() == (shop.others / "database").read_text()


def test_ledgers_of_another_database_are_not_swept_for_a_table_that_was_dropped(
    tmp_path: Path,
) -> None:
    # given a table that was dropped, and another database that has one of the same number
    shop = Shop(tmp_path)
    number = shop.kept.descriptor.id
    with shop.db:
        shop.db.drop_table("second")
        shop.db.advance_watermark("now")
    shutil.rmtree(shop.place)
    shutil.copytree(shop.others, shop.place)
    theirs = shop.files()
    assert [one for one in theirs if f"table-{number}" in one.parts]
    # when the database is opened with the other one's place mounted, and compacts
    with lowmark.open(shop.path) as db:
        with pytest.raises(OtherLedgers):
            db["first_cut"].sweep()
        worker = db.worker(engine="local")
        with contextlib.suppress(OtherLedgers):
            worker.look()
        worker.finish()
    # then nothing of the other one's is gone
    assert shop.files() == theirs
