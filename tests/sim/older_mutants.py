"""Lowmark with one rule about older directories broken, on purpose: what their lives must find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager

import msgspec

from lowmark.group import hello, starts
from lowmark.group.doubts import Doubts
from lowmark.group.hello import Hellos
from lowmark.group.starts import Start, Starts, Verdict
from lowmark.group.wire import Item
from lowmark.log import GroupLog
from sim.mutants import replaced

__all__ = ["MUTANTS"]


@contextmanager
def believes_any_start() -> Iterator[None]:
    def judge(claimed: Start, known: Start | None) -> Verdict:
        return Verdict.SAME if claimed == known else Verdict.NEW

    with replaced(hello, "judge", judge), replaced(starts, "judge", judge):
        yield


def forgets_starts_with_its_process() -> AbstractContextManager[None]:
    original = Starts.heard

    def heard(
        self: Starts, found: Iterable[tuple[int, Start]], *, of: int
    ) -> tuple[int, AbstractSet[int]]:
        def keep(**changes: object) -> None:
            self._note = msgspec.structs.replace(self._note, **changes)

        self._save = keep  # type: ignore[method-assign]
        try:
            return original(self, found, of=of)
        finally:
            del self._save

    return replaced(Starts, "heard", heard)


def begins_anew_with_the_copies_that_it_has() -> AbstractContextManager[None]:
    def mark(self: Doubts, log: GroupLog) -> None:
        del self, log

    return replaced(Doubts, "_mark", mark)


def takes_votes_of_those_who_were_not_told() -> AbstractContextManager[None]:
    def may_vote(self: Hellos, node: int, group: str, vote: Item) -> bool:
        del self, node, group, vote
        return True

    return replaced(Hellos, "may_vote", may_vote)


def tells_only_of_itself() -> AbstractContextManager[None]:
    original = Starts.all_known

    def all_known(self: Starts) -> tuple[tuple[int, Start], ...]:
        return tuple((node, start) for node, start in original(self) if start == self.own)

    return replaced(Starts, "all_known", all_known)


def counts_starts_that_none_heard_of() -> AbstractContextManager[None]:
    original = Starts.count

    def count(self: Starts) -> None:
        self._note = msgspec.structs.replace(self._note, heard=True)
        original(self)

    return replaced(Starts, "count", count)


def keeps_the_first_of_two_starts_of_one_number() -> AbstractContextManager[None]:
    def merged(one: Start, known: Start | None) -> Start:
        return known if known is not None and known.number >= one.number else one

    return replaced(starts, "merged", merged)


MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "believes any start": believes_any_start,
    "forgets starts with its process": forgets_starts_with_its_process,
    "begins anew with the copies that it has": begins_anew_with_the_copies_that_it_has,
    "takes votes of those who were not told": takes_votes_of_those_who_were_not_told,
    "tells only of itself": tells_only_of_itself,
    "counts starts that none heard of": counts_starts_that_none_heard_of,
    "keeps the first of two starts of one number": keeps_the_first_of_two_starts_of_one_number,
}
