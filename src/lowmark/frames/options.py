"""What a user asks of a table by Spark's options; names are those of Kafka's source and of table
formats, where these have one.

    path, node          a directory, or the address of a server; one of both. Of a cluster, the
                        addresses of several nodes with commas between: any of them will do
    table               its name
    columns             names with commas between; `*` is all of the table's, and there are system
                        columns: `*,_change,_partition,_offset,_time`. Deletes are rows of the log
                        only where `_change` is among them
    timestampAsOf       the table as it was at a time, by the clock
    versionAsOf         the table as it was at a row's `_time`
    startingOffsets     earliest, latest, or {"0": 17, "1": -2}; -2 is earliest, -1 is latest
    startingTimestamp   the first row of a time or behind it: milliseconds since 1970, or ISO 8601
    endingOffsets, endingTimestamp
                        where a read of the log ends: before this offset, and with the last row of
                        this time
    startingOffsetsByTimestamp, endingOffsetsByTimestamp
                        the same by partition, as Kafka's source has it: {"0": 1700000000000}. It
                        begins with the first row of that time or behind it, and ends before it
    startingOffsetsByTimestampStrategy
                        what a start by time does if no row has that time or a later one: `error`,
                        or `latest`. If not given, a start by partition is an error, as with Kafka,
                        and startingTimestamp begins with what comes
    maxRowsPerTrigger, maxBytesPerTrigger
                        how much a micro-batch has at most; rows of one append are not taken apart
                        by bytes
    failOnDataLoss      whether rows that are gone, and should be read, end the query; true, if not
                        given
    readChangeFeed      what changed, key by key, with `_change_type`, `_commit_version` (a row's
                        `_time`) and `_commit_timestamp`
    startingVersion, endingVersion
                        of changes: where they begin and end, both included
    preimages           of changes: whether updates come with what was before; true, if not given
    net                 of changes: one for each key
    minPartitions       how many tasks a read has at least
    fromOffsets         of a table as of a time, only rows from these offsets on, and no other
                        partitions: {"0": 17}; this is how `table` reads what is in no ledger
    knownResets         what `table` has heard of resets of groups (`group.lineages`): its tasks are
                        not answered by nodes that a reset has left behind
    cursor              the name of a stream's cursor; drawn, if not given. A new query begins where
                        the cursor of that name stands, if there is one, whatever its start says
    cursor.idle_expiry  how long a stream's cursor holds the log after its query was last heard of;
                        `0 s`: for ever. If not given, `7 days`; a cursor of that name that is there
                        already keeps what it has
    failOnMissingColumns
                        of a write: whether a column of the table that the rows do not have is
                        refused; false, if not given: it gets its default, or null
    txnAppId, txnVersion
                        of a write: a name, and a number that grows; what has both is stored once
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias

from lowmark.backend.connection import addresses_of
from lowmark.catalog import DURATION_TAKES, parse_duration
from lowmark.client.staging import EPOCH_MAX
from lowmark.convert.times import is_ago, is_hybrid, parse_time
from lowmark.errors import Rejected
from lowmark.frames.errors import OptionRefused
from lowmark.runtime import COUNTER_BITS
from lowmark.table import IDLE_MS_MAX

Strategy: TypeAlias = Literal["error", "latest"]


@dataclass(frozen=True, slots=True)
class Times:
    """A place by times: in each partition, the first row of a time or behind it."""

    by_partition: Mapping[int, int]
    everywhere: int | None = None
    """Of partitions that are not named; None: these begin at the earliest, and end with the
    latest."""
    strategy: Strategy = "error"
    """What a start does where there is no such row. An end is the latest then."""


Position: TypeAlias = Literal["earliest", "latest"] | Mapping[int, int] | Times

_KNOWN: Final = {
    "path": "path",
    "node": "node",
    "table": "table",
    "columns": "columns",
    "timestampasof": "timestampAsOf",
    "versionasof": "versionAsOf",
    "startingoffsets": "startingOffsets",
    "startingtimestamp": "startingTimestamp",
    "endingoffsets": "endingOffsets",
    "endingtimestamp": "endingTimestamp",
    "startingoffsetsbytimestamp": "startingOffsetsByTimestamp",
    "endingoffsetsbytimestamp": "endingOffsetsByTimestamp",
    "startingoffsetsbytimestampstrategy": "startingOffsetsByTimestampStrategy",
    "maxrowspertrigger": "maxRowsPerTrigger",
    "maxoffsetspertrigger": "maxRowsPerTrigger",
    "maxbytespertrigger": "maxBytesPerTrigger",
    "failondataloss": "failOnDataLoss",
    "minpartitions": "minPartitions",
    "cursor": "cursor",
    "cursor.idle_expiry": "cursor.idle_expiry",
    "readchangefeed": "readChangeFeed",
    "readchangedata": "readChangeFeed",
    "startingversion": "startingVersion",
    "endingversion": "endingVersion",
    "preimages": "preimages",
    "net": "net",
    "fromoffsets": "fromOffsets",
    "knownresets": "knownResets",
    "failonmissingcolumns": "failOnMissingColumns",
    "txnappid": "txnAppId",
    "txnversion": "txnVersion",
}
_OF_PLACE = ("path", "node", "table")
_OF_STREAM_WRITE = (*_OF_PLACE, "failOnMissingColumns")
_OF_WRITE = ("failOnMissingColumns", "txnAppId", "txnVersion")
_STRATEGY: Final = "startingOffsetsByTimestampStrategy"
_BY_PARTITION = ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp", _STRATEGY)
_OF_LOG = (
    *("startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp"),
    *_BY_PARTITION,
)
_OF_FEED = ("startingVersion", "endingVersion", "preimages", "net")
_OF_STREAM = ("maxRowsPerTrigger", "maxBytesPerTrigger", "cursor", "cursor.idle_expiry")
_OF_QUERY: Final = frozenset({"checkpointlocation", "queryname"})
"""What Spark hands on to a sink of what the query was told: `DataStreamWriter.queryName`, too."""
_OF_PLATFORM: Final = ("__", "spark.", "databricks.")
"""How names begin that Spark, or a platform, keeps for itself and may add to any read or write."""
_AS_IT_IS: Final = {
    "mergeschema": ("false", "Alter the table first: table.alter(add=...)."),
    "overwriteschema": ("false", "Alter the table first, or make another one."),
    "outputmode": ("append", 'Call writeStream.outputMode("append"); see lowmark.spark.upsert.'),
}
"""Options of other sinks, of which one value says what this one does in any case."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OF_CREATE = ("option.", "provider", "location", "owner")
"""What Spark gives a source when a table is created with it."""
IDLE_EXPIRY_MS: Final = 7 * 86_400_000
"""As long as Kafka keeps the offsets of a group that is away."""
EARLIEST: Final = -2
LATEST: Final = -1
_NEVER: Final = (1 << 62) - 1
"""A time behind all others: of `now`, no row is there yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for."""

    path: str = ""
    node: str = ""
    table: str
    columns: tuple[str, ...] | None = None
    as_of: str | int | None = None
    start: Position | str | int | None = None
    end: Position | str | int | None = None
    rows_max: int | None = None
    bytes_max: int | None = None
    fail_on_loss: bool = True
    tasks_min: int = 1
    cursor: str = ""
    idle_expiry_ms: int | None = None
    """0: never; None: it was not given."""
    feed: bool = False
    """Whether changes are read, key by key."""
    preimages: bool = False
    net: bool = False
    firsts: Mapping[int, int] | None = None
    """Of a table as of a time: only these partitions, and of each the rows from an offset on."""
    resets: Mapping[str, int] | None = None
    """What was heard of resets where this was planned."""
    stream_only: tuple[str, ...] = ()
    """Options that were given and are for streams."""
    write_name: str = ""
    write_number: int = 0
    """Of a write: what it is stored once by, if there is a name."""
    whole_rows: bool = False
    """Of a write: whether rows must have all columns of the table."""

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Options:
        """The options of a read, or of a stream: Spark asks for columns before it says which."""
        named = _placed(given)
        for name in _OF_WRITE:
            if name in named:
                raise OptionRefused(f"{name} is for a write", hint="Leave it out.")
        as_of = _one_of(named, "timestampAsOf", "versionAsOf")
        of_log = [name for name in _OF_LOG if name in named]
        if as_of is not None and of_log:
            raise OptionRefused(
                f"{as_of} and {of_log[0]} exclude each other",
                hint="A table as of a time has no start and no end.",
            )
        feed = _flag(named, "readChangeFeed", default=False)
        for name in _OF_FEED:
            if name in named and not feed:
                raise OptionRefused(
                    f"{name} is for changes", hint='Say so: .option("readChangeFeed", "true").'
                )
        for name in _BY_PARTITION:
            if name in named and feed:
                raise OptionRefused(
                    f"{name} is for rows of the log, not for changes",
                    hint="Use startingTimestamp and endingTimestamp.",
                )
        if feed and "minPartitions" in named:
            raise OptionRefused(
                "minPartitions is not for changes",
                detail="All changes of a key are in one task, so a partition is not split.",
            )
        if feed and as_of is not None:
            raise OptionRefused(f"changes have no {as_of}", hint="Give a start and an end.")
        return cls(
            path=named.get("path", ""),
            node=named.get("node", ""),
            table=named["table"],
            columns=_columns(named.get("columns")),
            as_of=_as_of(named),
            start=_position(named, "starting"),
            end=_position(named, "ending"),
            rows_max=_count(named, "maxRowsPerTrigger"),
            bytes_max=_count(named, "maxBytesPerTrigger"),
            fail_on_loss=_flag(named, "failOnDataLoss", default=True),
            tasks_min=_count(named, "minPartitions") or 1,
            cursor=named.get("cursor", ""),
            idle_expiry_ms=_idle_expiry(named.get("cursor.idle_expiry")),
            feed=feed,
            preimages=_flag(named, "preimages", default=feed),
            net=_flag(named, "net", default=False),
            firsts=_offsets("fromOffsets", named["fromOffsets"])
            if "fromOffsets" in named
            else None,
            resets=_resets(named.get("knownResets")),
            stream_only=tuple(name for name in _OF_STREAM if name in named),
        )

    @classmethod
    def write(cls, given: Mapping[str, str], *, stream: bool = False) -> Options:
        """The options of a write."""
        named = _placed(_of_write(given))
        for name in named:
            if name not in (_OF_STREAM_WRITE if stream else (*_OF_PLACE, *_OF_WRITE)):
                raise OptionRefused(
                    f"{name} is not for a {'stream that writes' if stream else 'write'}",
                    hint="Leave it out.",
                )
        if ("txnAppId" in named) != ("txnVersion" in named):
            raise OptionRefused("txnAppId and txnVersion go together", hint="Give both.")
        number = _whole("txnVersion", named.get("txnVersion", "0"))
        if not 0 <= number <= EPOCH_MAX or not named.get("txnAppId", "once").strip():
            raise OptionRefused("what a write is stored once by is a name, and a number from 0 on")
        return cls(
            path=named.get("path", ""),
            node=named.get("node", ""),
            table=named["table"],
            write_name=named.get("txnAppId", ""),
            write_number=number,
            whole_rows=_flag(named, "failOnMissingColumns", default=False),
        )

    @property
    def reads_log(self) -> bool:
        """Whether rows of the log are read, and not the table."""
        return self.start is not None or self.end is not None

    def for_read(self) -> Options:
        """As a read has them."""
        if self.stream_only:
            raise OptionRefused(f"{self.stream_only[0]} is for streams", hint="Use readStream.")
        return self

    def for_stream(self) -> Options:
        """As a stream has them."""
        if self.as_of is not None:
            raise OptionRefused(
                "a stream is not of one time",
                hint="Use startingTimestamp instead of timestampAsOf and versionAsOf.",
            )
        if self.end is not None:
            raise OptionRefused(
                "a stream has no end",
                hint="It takes what there is, and ends, with trigger(availableNow=True).",
            )
        return self


def _named(given: Mapping[str, str]) -> dict[str, str]:
    """Options by the names that we call them by; Spark hands them on in lower case."""
    named: dict[str, str] = {}
    for key, text in given.items():
        if key.lower().startswith(_OF_PLATFORM):
            continue
        name = _KNOWN.get(key.lower())
        if key.lower() == "paths":
            raise OptionRefused(
                f"a source is one table, and several paths were given: {text}",
                hint="Load each by itself, and join them by frame.union(other).",
            )
        if name is None:
            raise OptionRefused(
                f"there is no option {key!r}", hint=f"Known are {', '.join(_names())}."
            )
        if name in named:
            raise OptionRefused(f"{name} is given twice", hint="Leave one of both out.")
        named[name] = text if name == "txnAppId" else text.strip()
        if name == "node":
            named[name] = _nodes(named[name])
    return named


def _of_write(given: Mapping[str, str]) -> dict[str, str]:
    """What the user of a write has given, without what Spark knows and does by itself."""
    rest: dict[str, str] = {}
    for key, text in given.items():
        name = key.lower()
        if name in _OF_QUERY:
            continue
        if name not in _AS_IT_IS:
            rest[key] = text
            continue
        only, hint = _AS_IT_IS[name]
        if text.strip().lower() != only:
            raise OptionRefused(f"{key} can't be {text!r} in a write to a table", hint=hint)
    return rest


def _placed(given: Mapping[str, str]) -> dict[str, str]:
    """Options by name; they say which table of which database."""
    if not given or any(key.lower().startswith(_OF_CREATE) for key in given):
        raise OptionRefused(
            "CREATE TABLE can't be used with lowmark",
            detail="A table in Spark's catalog, also one of saveAsTable, writeTo or toTable, keeps"
            " no options for a source that is written in Python, so its rows would not be found.",
            hint="Drop it, and use CREATE TEMPORARY VIEW v USING lowmark OPTIONS (path '...', table"
            " '...'). Write by save() and start().",
        )
    named = _named(given)
    if ("path" in named) == ("node" in named):
        raise OptionRefused(
            "a source is one directory, or one server",
            hint='Give .option("path", DIRECTORY), or .option("node", "host:port").',
        )
    if not named.get("table"):
        raise OptionRefused("no table is named", hint='Name it: .option("table", NAME).')
    return named


def placed_at(path: str, node: str | Sequence[str], **more: str) -> dict[str, str]:
    """Options of a function of ours that takes a place: what was left empty was not given."""
    nodes = node if isinstance(node, str) else ",".join(addresses_of(node)) if node else ""
    return {key: text for key, text in {"path": path, "node": nodes, **more}.items() if text}


def _nodes(text: str) -> str:
    """Addresses with commas between; PySpark makes text of a list in Python's words."""
    given = text[1:-1].replace('"', "").replace("'", "") if text[:2] in {"['", '["'} else text
    try:
        return ",".join(addresses_of(given))
    except Rejected as error:
        raise OptionRefused(
            f"node can't be {text!r}: {error.message}",
            hint='Give .option("node", "host:port"), or several with commas between.',
        ) from error


def _names() -> list[str]:
    return list(dict.fromkeys(_KNOWN.values()))


def _one_of(named: Mapping[str, str], *names: str) -> str | None:
    there = [name for name in names if name in named]
    if len(there) > 1:
        raise OptionRefused(f"{there[0]} and {there[1]} exclude each other")
    return there[0] if there else None


def _columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise OptionRefused(f"columns can't be {text!r}", hint="Give names, with commas between.")
    return names


def _as_of(named: Mapping[str, str]) -> str | int | None:
    if "versionAsOf" in named:
        return _version("versionAsOf", named["versionAsOf"])
    return _time("timestampAsOf", named["timestampAsOf"]) if "timestampAsOf" in named else None


def _time(name: str, text: str) -> str | int:
    """Milliseconds since 1970, or text, which the table reads. A row's time is a time, too."""
    if is_ago(text):  # a query that is started again would begin elsewhere
        raise OptionRefused(
            f"{name} can't be {text!r}", hint="Give a time in ISO form, or a number."
        )
    if not text.lstrip("-").isdecimal():
        return text
    number = _whole(name, text)
    if is_hybrid(number):
        return number
    try:
        return (_EPOCH + timedelta(milliseconds=number)).isoformat()
    except OverflowError as error:
        raise OptionRefused(f"{name} can't be {text!r}", hint="It is not a time.") from error


def _version(name: str, text: str) -> int:
    number = _whole(name, text)
    if not is_hybrid(number):
        raise OptionRefused(
            f"{name} can't be {text}", hint="A version is a row's `_time`, or `_commit_version`."
        )
    return number


def _position(named: Mapping[str, str], which: str) -> Position | str | int | None:
    offsets, timestamp, version = f"{which}Offsets", f"{which}Timestamp", f"{which}Version"
    times = f"{offsets}ByTimestamp"
    name = _one_of(named, offsets, timestamp, times, version)
    strategy = _strategy(named) if which == "starting" else None
    if strategy is not None and name not in {timestamp, times}:
        raise OptionRefused(
            f"{_STRATEGY} is for a start by time",
            hint=f"Give {timestamp} or {times}, or leave it out.",
        )
    if name is None:
        return None
    text = named[name]
    if name == times:
        return Times(_times(name, text), strategy=strategy or "error")
    if name == timestamp and strategy is not None:
        last = parse_time(_time(name, text), now=_NEVER)
        return Times({}, last >> COUNTER_BITS << COUNTER_BITS, strategy)
    if name == version and text not in {"earliest", "latest"}:
        return _version(name, text)
    if name == timestamp:
        return _time(name, text)
    if text in {"earliest", "latest"}:
        return "earliest" if text == "earliest" else "latest"
    return _offsets(name, text)


def _offsets(name: str, text: str | None) -> dict[int, int] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
        return {int(number): _offset(at) for number, at in found.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise OptionRefused(
            f"{name} can't be {text!r}",
            hint='Give earliest, latest, or offsets by partition: {"0": 17, "1": -2}.',
        ) from error


def _resets(text: str | None) -> dict[str, int] | None:
    if text is None:
        return None
    try:
        return {str(group): _natural(at) for group, at in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise OptionRefused(
            f"knownResets can't be {text!r}", hint="Leave it out: it is for frames that we make."
        ) from error


def _times(name: str, text: str) -> dict[int, int]:
    """Times by partition: of a millisecond the first one."""
    try:
        found = json.loads(text)
        given = {int(number): _natural(at) for number, at in found.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise OptionRefused(
            f"{name} can't be {text!r}",
            hint='Give milliseconds since 1970 by partition: {"0": 1700000000000}.',
        ) from error
    return {number: at if is_hybrid(at) else at << COUNTER_BITS for number, at in given.items()}


def _natural(at: object) -> int:
    if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at <= _NEVER:
        raise ValueError(at)
    return at


def _strategy(named: Mapping[str, str]) -> Strategy | None:
    match named.get(_STRATEGY):
        case None:
            return None
        case "error":
            return "error"
        case "latest":
            return "latest"
        case other:
            raise OptionRefused(f"{_STRATEGY} can't be {other!r}", hint="Give error or latest.")


def _offset(at: object) -> int:
    if isinstance(at, bool) or not isinstance(at, int) or at < EARLIEST:
        raise ValueError(at)
    return at


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise OptionRefused(f"{name} can't be {text!r}", hint="Give a whole number.") from error


def _count(named: Mapping[str, str], name: str) -> int | None:
    if name not in named:
        return None
    count = _whole(name, named[name])
    if count < 1:
        raise OptionRefused(f"{name} can't be {count}", hint="Give at least 1.")
    return count


def _idle_expiry(text: str | None) -> int | None:
    if text is None:
        return None
    millis = parse_duration(text)
    if millis is None or millis > IDLE_MS_MAX:
        raise OptionRefused(
            f"cursor.idle_expiry can't be {text!r}", hint=f"Give {DURATION_TAKES}; 0 s is never."
        )
    return millis


def _flag(named: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = named.get(name, str(default)).lower()
    if text not in {"true", "false"}:
        raise OptionRefused(f"{name} can't be {text!r}", hint="Give true or false.")
    return text == "true"
