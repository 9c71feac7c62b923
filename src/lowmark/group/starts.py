"""Which starts of which node this directory knows: by that a directory that is older is recognised.

A disk image that is put back, a copy of a directory, a snapshot of a machine: a node that starts
from one has forgotten votes and entries that it acknowledged since, and nothing in its directory
says so. So each start of a node has a number, one higher than that of the last start that another
node has heard of, and an identity that is drawn. Both are durable before the node says anything to
another one; and each node keeps the last start that it knows of each other node, durably, before it
believes a word of that start (`hello`). A node that claims a start that others know as another one,
or a lower one, has a directory that is older than what was seen of it.

    claimed    known: none or lower     a new start: it is kept
               as high, and it names    the same start; or a new one, after some of which its node
               all that are known of    did not know that they were heard of
               that number
               known: higher, or as     the directory is older: nothing that it says of groups is
               high with one that it    believed, and it is told
               does not name

Of the highest number that is known, all identities are kept, whichever node told of them: two nodes
may each know another start of that number, and only a directory that has both is not older.

The number does not grow with starts that no other node heard of: an older directory that is started
again and again, and never gets as far as to be told, would else pass for a new one in the end.

What a node does that learns this of itself, and what is true after each step

    1. the note says which start others know      its copies say nothing any more, in no later
       (`lost`)                                   process either
    2. each copy's record says that it is in      none of its copies votes, acknowledges or leads
       doubt (`storage.GroupMeta.in_doubt`);      before it was added to its group again
       where none can be written, a note does
    3. the note has a start above all that is     others believe it again; what its copies ask is
       known, and that copies may be missing      to be added again (`doubts`)
       here (`unsettled`)
    4. copies that the directory lacks have a     new copies are made as ever
       note of their own; `unsettled` is over

A crash after any of them is made good by the next start: a note with `lost` goes on with 2.

What can't be recognised: a directory that was copied after the last start of it that anyone heard
of; one whose start only nodes heard of that are all away; and one of a node that has no others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from enum import Enum

import msgspec

from lowmark.errors import Corrupt
from lowmark.log import files
from lowmark.log.errors import NewerFormat
from lowmark.log.files import Note, read_note, write_note
from lowmark.runtime import Disk

logger = logging.getLogger(__name__)

_BEFORE_MAX = 64
"""How many starts that no other node is known to have heard of have identities of their own."""
_KNOWN_MAX = _BEFORE_MAX + 2
"""How many identities of one number are kept: one more than any directory can name."""
PATH = files.STARTS
ASIDE = f"{PATH}~"
DAMAGED = f"{PATH}.damaged"


class Start(msgspec.Struct, frozen=True, array_like=True):
    """One start of a node, as it claims it; or all starts of one number that are known of it."""

    number: int
    id: int
    """Drawn: two directories that were one begin starts of the same number."""
    before: tuple[int, ...] = ()
    """Identities of other starts of the same number: in a claim, earlier ones of its directory."""

    @property
    def ids(self) -> frozenset[int]:
        """All identities."""
        return frozenset((self.id, *self.before))


class Verdict(Enum):
    """What a claimed start is to one who knows the last one."""

    NEW = "new"
    SAME = "same"
    OLDER = "older"


def judge(claimed: Start, known: Start | None) -> Verdict:
    """Compare what a node claims with what is known of it."""
    if known is None or claimed.number > known.number:
        return Verdict.NEW
    if claimed.number < known.number or not known.ids <= claimed.ids:
        return Verdict.OLDER
    return Verdict.SAME if known.ids == claimed.ids else Verdict.NEW


def merged(one: Start, known: Start | None) -> Start:
    """What is known of a node when another node knows `one` of it."""
    match judge(one, known):
        case Verdict.NEW:
            return one
        case Verdict.OLDER if known is not None and one.number == known.number:
            # The smallest, so that all nodes come to the same, whatever they hear first.
            ids = sorted(one.ids | known.ids)[:_KNOWN_MAX]
            return known if known.ids == set(ids) else Start(one.number, ids[0], tuple(ids[1:]))
    return known or one


class StartsNote(Note, frozen=True, kw_only=True):
    """What is kept in the directory."""

    number: int = 0
    """Of the last start of this directory; 0: it was never started among others."""
    id: int = 0
    before: tuple[int, ...] = ()
    """Of earlier starts of the same number, which no other node is known to have heard of."""
    heard: bool = False
    """Whether another node has kept the last start."""
    known: dict[str, Start] = msgspec.field(default_factory=dict)
    """The last start of each other node that this one knows of, by number of the node, with all
    that are known of the same number."""
    lost: int = 0
    """This directory is older than this start of it, and copies in it may not be in doubt yet."""
    unsettled: bool = False
    """Whether copies may be missing here that this node once had."""
    older_than: int = 0
    """The last start that this directory was found to be older than; kept for people."""


class Starts:
    """The starts that this node knows of, its own and others'."""

    def __init__(self, disk: Disk, *, node: int, draw: Callable[[], int]) -> None:
        self._disk = disk
        self._node = node
        self._draw = draw
        self._note = _load(disk)
        self.counted = False
        """Whether this process has a start of its own, durable."""
        self.revision = 1
        """Grows whenever there is more to tell to others."""
        self._found_lost = 0
        """The same as the note's `lost`, as soon as it is heard: the disk may fail."""

    # -- asking ---------------------------------------------------------------------------------

    @property
    def own(self) -> Start:
        """What this process claims."""
        return Start(self._note.number, self._note.id, self._note.before)

    @property
    def lost(self) -> int:
        """The start that this directory is older than, while its copies are not all in doubt."""
        return max(self._note.lost, self._found_lost)

    @property
    def unsettled(self) -> bool:
        """Whether copies may be missing here that this node once had."""
        return self._note.unsettled

    @property
    def older_than(self) -> int:
        """The last start that this directory was found to be older than; 0: none."""
        return self._note.older_than

    def known(self, node: int) -> Start | None:
        """The last start of another node that this one knows of, with all that are known of the
        same number.
        """
        return self._note.known.get(str(node))

    def all_known(self) -> tuple[tuple[int, Start], ...]:
        """What there is to tell, this node's own start included."""
        others = [(int(node), start) for node, start in self._note.known.items()]
        return tuple(sorted([*others, (self._node, self.own)]))

    # -- changing -------------------------------------------------------------------------------

    def count(self) -> None:
        """Count this start; durable when it returns. Nothing is said to other nodes before."""
        if self.counted:
            return
        note = self._note
        if note.heard or not note.number:
            self._save(number=note.number + 1, id=self._draw(), before=(), heard=False)
        elif len(note.before) < _BEFORE_MAX:
            self._save(id=self._draw(), before=(*note.before, note.id))
        self.counted = True

    def was_heard(self) -> None:
        """Another node has kept this start."""
        if not self._note.heard:
            self._save(heard=True)

    def heard(
        self, starts: Iterable[tuple[int, Start]], *, of: int = 0
    ) -> tuple[int, AbstractSet[int]]:
        """Another node knows these, `of`, which claims its own; durable when it returns.

        A claim that is not believed is not kept. What another node has believed is: what was
        promised to it counts, whichever directory promised it.

        Give the number of the start that this directory is older than (0: it is not), and the nodes
        of which this one has learned a start.
        """
        older, news = 0, {}
        for node, start in starts:
            if node == self._node:
                if judge(self.own, start) is Verdict.OLDER:
                    older = max(older, start.number)
                continue
            known = self.known(node)
            refused = node == of and judge(start, known) is Verdict.OLDER
            now = known if refused else merged(start, known)
            if now is not None and now != known:
                news[node] = now
        if news:
            learned = {str(node): start for node, start in news.items()}
            self._save(known={**self._note.known, **learned})
            self.revision += 1
        return older, news.keys()

    def is_older_than(self, number: int) -> None:
        """This directory is older than that start: from here on this node is silent."""
        self._found_lost = max(self._found_lost, number)

    def note_lost(self) -> None:
        """Step 1; nothing if that is noted."""
        if self.lost > self._note.lost:
            self._save(lost=self.lost, older_than=self.lost)

    def begin_anew(self) -> None:
        """Step 3: all copies are in doubt."""
        number = max(self._note.number, self.lost) + 1
        anew = {"number": number, "id": self._draw(), "before": (), "heard": False}
        self._save(**anew, lost=0, unsettled=True)
        self._found_lost = 0
        self.revision += 1

    def settle(self) -> None:
        """Step 4 is done."""
        if self._note.unsettled:
            self._save(unsettled=False)

    def all_is_well(self) -> None:
        """No copy is in doubt any more: there is nothing left to tell people."""
        if self._note.older_than:
            self._save(older_than=0)

    def _save(self, **changes: object) -> None:
        note = msgspec.structs.replace(self._note, **changes)
        if self._disk.stat(ASIDE) is not None:
            self._disk.unlink(ASIDE)
        write_note(self._disk, ASIDE, note)
        self._disk.rename(ASIDE, PATH)
        self._disk.sync_dir("")
        self._note = note


def _load(disk: Disk) -> StartsNote:
    """What a directory has; one of a release before has nothing, and begins at 1.

    A note that is damaged is put aside. This node begins at 1 then, too: nodes that know it take
    its directory for older, and have its copies made good. What it knew of others is lost.
    """
    if disk.stat(PATH) is None:
        return StartsNote()
    try:
        return read_note(disk, PATH, StartsNote)
    except NewerFormat:
        raise
    except Corrupt as damage:
        logger.error("the note of starts is damaged, and put aside", extra={"why": damage.message})
        if disk.stat(DAMAGED) is not None:
            disk.unlink(DAMAGED)
        disk.rename(PATH, DAMAGED)
        disk.sync_dir("")
        return StartsNote()
