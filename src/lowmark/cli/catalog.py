"""`lowmark catalog`: the versions of the catalog, and what changed between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from lowmark.catalog import (
    BY_PREFIX,
    UPDATE_PREFIX,
    Catalog,
    Difference,
    History,
    Snapshot,
    describe,
    diff,
    read_commands,
    read_log,
    replay,
    time_or_never,
    version_of,
)
from lowmark.catalog import to_builtins as catalog_builtins
from lowmark.cli import catalog_history
from lowmark.cli.database import DatabaseOption, opened_database
from lowmark.cli.node_option import named_place
from lowmark.cli.output import Cell, Json, show_facts, show_json, show_table
from lowmark.cli.session import WrongUse, help_if_bare
from lowmark.cli.source import DataOption, NodeOption, Source, node_client, opened_source
from lowmark.errors import Unavailable
from lowmark.formatting import by_text, time_text
from lowmark.metastore import Entry
from lowmark.metastore.nodes import NODE_PREFIX, decode_node
from lowmark.node import RangePage, Status
from lowmark.node.messages import ExecutedReply
from lowmark.runtime import COUNTER_BITS, millis_of
from lowmark.upkeep import ROUND_PREFIX, Round, read_round

app = typer.Typer(invoke_without_command=True)


@app.callback()
def catalog(ctx: typer.Context) -> None:
    """Show the catalog version by version, change it, and cut its history."""
    help_if_bare(ctx)


app.command()(catalog_history.compact)
app.command()(catalog_history.explain)


@dataclass(frozen=True, slots=True)
class _Version:
    """What is known of how a version came to be."""

    catalog: Catalog
    author: str
    revision: int
    changes: list[str]


@dataclass(slots=True)
class _Log:
    """All versions that are left, and who made them."""

    history: History = field(default_factory=History)
    versions: list[_Version] = field(default_factory=list)
    known_until: int | None = None
    """The last time for which a directory can tell which version was in force."""
    directory: str | None = None
    """It, if no node was asked."""


def _known_until(status: Status) -> int:
    """What a node knew: everything that was written until then came into force a delay later."""
    if status.metastore is None or status.cluster is None:
        return 0
    millis = status.metastore.time_ms + status.cluster.schema_sync_delay_ms
    return millis << COUNTER_BITS


def _read(ctx: typer.Context, node: str | None, data: Path | None) -> _Log:
    """Replay the update log here: the same function of the same values as on every node."""
    log = _Log(directory=named_place(node, None if data is None else str(data)).data)
    with opened_source(ctx, node, data) as source:
        if log.directory is not None:
            log.known_until = _known_until(source.status())
        names = {one.number: one.name for one in map(decode_node, _values(source, NODE_PREFIX))}
        by = _entries(source.range(BY_PREFIX))
        asked = {version_of(one.key): one.value.decode() for one in by}
        pages = list(source.range(UPDATE_PREFIX))
        # A large snapshot is in parts, which are read as of the same revision as the log.
        revision = pages[0].revision if pages else 0
        for entry in _entries(pages):
            values = read_log([entry], parts=lambda key: _part(source, key, revision))
            for value, before, made in replay(values, log.history):
                if isinstance(value, Snapshot):
                    log.versions.clear()
                    whole = [f"all of version {made.version}; those before it were cut away"]
                    log.versions.append(_Version(made, "", entry.revision, whole))
                else:
                    node_name = names.get(value.author, str(value.author))
                    author = by_text(node_name, asked.get(value.version, ""))
                    words = describe(before, value.entries)
                    log.versions.append(_Version(made, author, entry.revision, words))
    return log


def _part(source: Source, key: bytes, revision: int) -> bytes | None:
    found = source.get(key, at=revision).entry
    return found.value if found is not None else None


def _entries(pages: Iterable[RangePage]) -> Iterator[Entry]:
    for page in pages:
        for one in page.entries:
            value = one.value or b""
            yield Entry(one.key, value, one.revision, one.created, one.version, one.time)


def _values(source: Source, prefix: bytes) -> Iterator[bytes]:
    return (entry.value for entry in _entries(source.range(prefix)))


def _time(time: int) -> str:
    return time_text(millis_of(time))


@app.command("log")
def log_(
    ctx: typer.Context,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Show only the newest N.")
    ] = None,
    rounds: Annotated[
        bool, typer.Option("--rounds", help="Show only the rounds that cut history, or could not.")
    ] = False,
    node: NodeOption = None,
    data: DataOption = None,
    as_json: Json = False,
) -> None:
    """List versions: when each came into force, its author, and what it changed; then the last
    rounds that cut history, or that other holders than before kept from it.

    With --json, a list: version, active_from, written, author, revision, changes. With --json
    --rounds, a list of rounds, as `lowmark catalog compact --json` shows one.

    Example: lowmark catalog log --limit 10
    """
    made = _rounds(ctx, node, data)[-(limit or 0) :] if rounds or not as_json else []
    if rounds:
        _show_rounds(made, as_json=as_json)
        return
    versions = _read(ctx, node, data).versions[-(limit or 0) :]
    if as_json:
        show_json([_version_row(each) | {"changes": each.changes} for each in versions])
        return
    rows: list[dict[str, Cell]] = []
    for each in versions:
        row = _version_row(each)
        for place, line in enumerate(each.changes or ["no visible change"]):
            shown: dict[str, Cell] = dict.fromkeys(row, "") if place else dict(row)
            rows.append(shown | {"changes": line})
    columns = ("version", "active_from", "author", "revision", "changes")
    show_table(rows, columns=columns, as_json=False)
    if made:
        print()
        _show_rounds(made, as_json=False)


def _rounds(ctx: typer.Context, node: str | None, data: Path | None) -> list[Round]:
    with opened_source(ctx, node, data) as source:
        return [read_round(value) for value in _values(source, ROUND_PREFIX)]


def _show_rounds(made: list[Round], *, as_json: bool) -> None:
    if as_json:
        show_json([catalog_history.round_facts(one) for one in made])
        return
    columns = ("round", "time", "trigger", "took_ms", "nodes", "copies", "result", "held_by")
    show_table([catalog_history.round_row(one) for one in made], columns=columns, as_json=False)


def _version_row(each: _Version) -> dict[str, Cell]:
    return {
        "version": each.catalog.version,
        "active_from": _time(each.catalog.activates_at),
        "written": _time(each.catalog.time),
        "author": each.author or None,
        "revision": each.revision,
    }


@app.command()
def show(
    ctx: typer.Context,
    version: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Show this version.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="TIME", help="Show the version in force then: 2026-07-01T12:00:00Z."
        ),
    ] = None,
    node: NodeOption = None,
    data: DataOption = None,
    as_json: Json = False,
) -> None:
    """Show one version of the catalog; by default the newest.

    With --json, one object: version, time, activates_at, default_zone, zones, schemas, tables,
    indexes.

    Example: lowmark catalog show --at 2026-07-01T12:00:00Z
    """
    if version is not None and at is not None:
        raise WrongUse("--version and --at can't be given together", hint="Leave one of them out.")
    time = parse_time(at) if at is not None else None
    if time is not None and time > _now():
        raise WrongUse(f"{at} is in the future", hint="Until then, the catalog may change.")
    log = _read(ctx, node, data)
    history, until = log.history, log.known_until
    if time is not None and until is not None and time > until:
        raise Unavailable(
            f"{log.directory} can't tell what was in force at {at}",
            detail=f"What its node knew ends at {_time(until)}.",
            hint="Ask a running node, or for an earlier time.",
        )
    found = history.latest
    if version is not None:
        found = history.version(version)
    elif time is not None:
        found = history.at(time)
    builtins = catalog_builtins(found)
    if as_json:
        show_json(builtins)
    else:
        _show(found, builtins)


def _now() -> int:
    """To the end of this millisecond."""
    return parse_time(datetime.now(UTC).isoformat())


def parse_time(text: str) -> int:
    """A time as people write it, to the end of its millisecond; without a zone, it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise WrongUse(
            f"{text!r} is not a time", hint="Write it as 2026-07-01T12:00:00Z."
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    millis = since.days * 86_400_000 + since.seconds * 1_000 + since.microseconds // 1_000
    if millis < 0:
        raise WrongUse(f"{text!r} is before 1970")
    return ((millis + 1) << COUNTER_BITS) - 1


def _show(found: Catalog, builtins: dict[str, Any]) -> None:
    facts: dict[str, Cell] = {
        "version": found.version,
        "active_from": _time(found.activates_at),
        "written": _time(found.time),
        "default_zone": builtins["default_zone"],
    }
    show_facts(facts, as_json=False)
    for kind in ("zones", "schemas", "tables", "indexes"):
        things = builtins[kind]
        if not things:
            continue
        if kind == "zones":
            things = [_with_times(thing) for thing in things]
        columns = [name for name in things[0] if name not in {"updated_at", "options"}]
        rows: list[dict[str, Cell]] = [
            {name: _cell(thing[name]) for name in columns} for thing in things
        ]
        print()
        show_table(rows, columns=columns, as_json=False, title=kind)


def _with_times(zone: dict[str, Any]) -> dict[str, Any]:
    """A zone as people read it: lengths of time instead of milliseconds."""
    names = {"scale_up_ms": "scale_up", "scale_down_ms": "scale_down"}
    return {
        names.get(name, name): time_or_never(value) if name in names else value
        for name, value in zone.items()
    }


def _cell(value: Any) -> Cell:
    match value:
        case list():
            words = [
                f"{item['name']} {item['type']}" if isinstance(item, dict) else str(item)
                for item in value
            ]
            return ", ".join(words) or None
        case "":
            return None
        case str() | bool() | int() | float() | None:
            return value
        case _:
            return str(value)


@app.command()
def apply(
    ctx: typer.Context,
    file: Annotated[
        typer.FileBinaryRead,
        typer.Argument(metavar="FILE", help="JSON: a command, or a list of commands; - is stdin."),
    ],
    node: NodeOption = None,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Run schema commands: all of them in one version, or none.

    A command is an object with one key, its name: {"create_table": {"name": "orders", "key":
    ["id"], "columns": [{"name": "id", "type": "int64", "required": true}]}}. The command
    returns when the version is in force on every node.

    With --json, one object: version, active_from_ms, applied.

    Example: lowmark catalog apply tables.json
    """
    try:
        wishes = msgspec.json.decode(file.read())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WrongUse(f"the input is not JSON: {error}") from error
    commands = read_commands(wishes)  # what is wrong on its face is said before a node is asked
    if named_place(node, data).data is None:
        with node_client(node) as client:
            done = client.execute(wishes if isinstance(wishes, list) else [wishes])
    else:
        with opened_database(ctx, data) as database:
            found = database.execute(commands)
        done = ExecutedReply(
            version=found.catalog.version,
            active_from_ms=millis_of(found.catalog.activates_at),
            applied=found.applied,
        )
    if as_json:
        show_json(msgspec.to_builtins(done))
        return
    changed = sum(done.applied)
    if changed:
        print(f"version {done.version} is in force; {changed} of {len(done.applied)} changed it")
    else:
        print(f"nothing to do: version {done.version} has it all")


@app.command("diff")
def diff_(
    ctx: typer.Context,
    old: Annotated[int, typer.Argument(min=0, metavar="A", help="The first version.")],
    new: Annotated[int, typer.Argument(min=0, metavar="B", help="The second version.")],
    node: NodeOption = None,
    data: DataOption = None,
    as_json: Json = False,
) -> None:
    """Show the differences between two versions.

    With --json, a list: object_kind, object_id, name, change, text.

    Example: lowmark catalog diff 4 9
    """
    history = _read(ctx, node, data).history
    found: list[Difference] = diff(history.version(old), history.version(new))
    if as_json:
        show_json([asdict(each) for each in found])
        return
    for each in found:
        print(each.text)
    if not found:
        print(f"versions {old} and {new} are the same")
