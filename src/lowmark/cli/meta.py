"""`lowmark meta`: look into the metastore; and its reset, when its majority is lost."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from lowmark.cli.output import Cell, Json, show_facts, show_json, show_table
from lowmark.cli.session import FAILED, WrongUse, help_if_bare, settings_of, wrong_use
from lowmark.cli.source import DataOption, NodeOption, opened_source
from lowmark.errors import Rejected
from lowmark.formatting import counted, time_text
from lowmark.inspect import open_offline
from lowmark.node import Status, StoredEntry, WatchEvent, WatchStarted, data_path
from lowmark.node.metastore_reset import answers, check_lost, reset_metastore, voters_besides
from lowmark.runtime.store import text_without_credentials

app = typer.Typer(invoke_without_command=True)

KeyArgument = Annotated[
    str, typer.Argument(metavar="KEY", help="As text, or 0x and hex for any bytes.")
]
PrefixArgument = Annotated[
    str, typer.Argument(metavar="[PREFIX]", help="Keys with this prefix; default: all keys.")
]
AtOption = Annotated[
    int | None, typer.Option("--at", min=0, metavar="REV", help="Read as of this revision.")
]


@app.callback()
def meta(ctx: typer.Context) -> None:
    """Show keys of the metastore, with their revisions and history; or reset the metastore."""
    help_if_bare(ctx)


@app.command()
def get(
    ctx: typer.Context,
    key: KeyArgument,
    at: AtOption = None,
    node: NodeOption = None,
    data: DataOption = None,
    as_json: Json = False,
) -> None:
    """Show a key's value, now or as of a revision. Exit code 1 if it has none.

    With --json, one object: key, value, revision, created, version, size, time; null if there is
    none. Bytes that are no text are shown as 0x and hex.

    Example: lowmark meta get topology
    """
    with opened_source(ctx, node, data) as source:
        entry = source.get(bytes_of(key), at=at).entry
    if as_json:
        show_json(_row(entry) if entry is not None else None)
    elif entry is not None:
        show_facts(_row(entry), as_json=False)
    else:
        print(f"{key} has no value")
    if entry is None:
        raise typer.Exit(FAILED)


@app.command("range")
def range_(
    ctx: typer.Context,
    prefix: PrefixArgument = "",
    at: AtOption = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="At most this many keys.")
    ] = None,
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Leave the values out.")] = False,
    node: NodeOption = None,
    data: DataOption = None,
    as_json: Json = False,
) -> None:
    """List keys in order, with their values, now or as of a revision.

    With --json, one object: revision, entries.

    Example: lowmark meta range node. --keys-only
    """
    rows: list[dict[str, Cell]] = []
    revision = 0
    with opened_source(ctx, node, data) as source:
        for page in source.range(bytes_of(prefix), at=at, limit=limit, keys_only=keys_only):
            revision = page.revision
            rows += [_row(entry) for entry in page.entries]
    columns = ["key", "revision", "version", "size", "time"]
    if not keys_only:
        columns.append("value")
    if as_json:
        entries = [{column: row[column] for column in columns} for row in rows]
        show_json({"revision": revision, "entries": entries})
    else:
        show_table(rows, columns=columns, as_json=False, title=f"as of revision {revision}")


@app.command()
def history(
    ctx: typer.Context,
    key: KeyArgument,
    node: NodeOption = None,
    data: DataOption = None,
    as_json: Json = False,
) -> None:
    """Show every value that a key had, as far as history was not compacted away.

    With --json, a list: key, revision, removed, created, version, size, time, value.

    Example: lowmark meta history topology
    """
    with opened_source(ctx, node, data) as source:
        entries = [e for page in source.history(bytes_of(key)) for e in page.entries]
    rows = [_row(entry) | {"removed": entry.removed} for entry in entries]
    columns = ("key", "revision", "removed", "version", "size", "time", "value")
    show_table(rows, columns=columns, as_json=as_json)


@app.command()
def watch(
    ctx: typer.Context,
    prefix: PrefixArgument = "",
    from_revision: Annotated[
        int | None,
        typer.Option(
            "--from", min=1, metavar="REV", help="The first revision; default: the next one."
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after this many revisions.")
    ] = None,
    node: NodeOption = None,
    data: DataOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Print changes as they happen: every revision once, in order. Until Ctrl-C, or --count.

    With --data, the command prints what the node of that directory knew, from --from on.

    With --json, one object a line: first {"from_revision"}, then revision, time, changes.

    Example: lowmark meta watch topology --from 1
    """
    seen = 0
    with opened_source(ctx, node, data) as source:
        for told in source.watch(bytes_of(prefix), from_revision=from_revision):
            _tell(told, as_json=as_json)
            seen += isinstance(told, WatchEvent)
            if seen == count:
                return


def _tell(told: WatchStarted | WatchEvent, *, as_json: bool) -> None:
    match told:
        case WatchStarted(from_revision=first):
            if as_json:
                print(json.dumps({"from_revision": first}), flush=True)
        case WatchEvent(revision=revision, time_ms=time_ms, changes=changes):
            if as_json:
                rows = [_row(entry) | {"removed": entry.removed} for entry in changes]
                facts = {"revision": revision, "time": time_text(time_ms), "changes": rows}
                print(json.dumps(facts, ensure_ascii=False), flush=True)
                return
            print(f"{revision}  {time_text(time_ms)}  {'; '.join(_words(changes))}", flush=True)


def _words(changes: Iterable[StoredEntry]) -> Iterable[str]:
    for entry in changes:
        key = words_of(entry.key)
        yield f"{key} removed" if entry.removed else f"{key} = {words_of(entry.value or b'')}"


def _row(entry: StoredEntry) -> dict[str, Cell]:
    return {
        "key": words_of(entry.key),
        "value": words_of(entry.value) if entry.value is not None else None,
        "revision": entry.revision,
        "created": entry.created or None,
        "version": entry.version or None,
        "size": entry.size,
        "time": time_text(entry.time_ms),
    }


# -- when its majority is lost --------------------------------------------------------------------


@app.command()
def reset(
    ctx: typer.Context,
    data: Annotated[
        Path,
        typer.Option("--data", metavar="PATH", help="The directory of a node that is stopped."),
    ],
    lost: Annotated[
        list[str] | None,
        typer.Option("--lost", metavar="NODE", help="A voter that is lost; repeat it for each."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what may be lost.")] = False,
    as_json: Json = False,
) -> None:
    """Let one copy of the metastore go on alone, after the majority of its voters is lost for good.

    What only the lost voters had acknowledged is gone after that: tables that were just created, or
    moves of partitions. Stop the node of the directory first. Of several nodes that are left, take
    the one with the highest revision. Every other voter must be named by --lost, and must not
    answer at its endpoint. Then start the node with `lowmark serve`: it leads the metastore alone.
    Other nodes that are up throw their copies away and follow it. The lost voters are drained.
    On a terminal, the command asks first, unless --yes is given.

    With --json, one object: data, node, lost, revision, uncertain_entries, done, last_index,
    committed, term.

    Example: lowmark meta reset --data ./n1 --lost n2 --lost n3 --dry-run
    """
    with wrong_use():
        path = data_path(data)
    config = settings_of(ctx).log
    with open_offline(path, config) as store:
        if store.problem:
            raise store.damage()
        known, uncertain = store.status(), store.unknown_entries
        node = store.node
    others = voters_besides(path, config)
    names = {row.number: row.name for row in known.nodes}
    numbers = [_number_of(word, known) for word in lost or ()]
    check_lost(path, others, numbers, names)
    _check_gone(known, numbers)
    assert known.metastore is not None
    given_up = [names.get(one, str(one)) for one in sorted(others)]
    found: dict[str, object] = {
        "data": path,
        "node": node,
        "lost": given_up,
        "revision": known.metastore.revision,
        "uncertain_entries": uncertain,
        "done": False,
    }
    if not as_json:
        more = counted(uncertain, "entry", "entries")
        print(
            f"{path} has the metastore of node {node} up to revision {known.metastore.revision:,}"
        )
        if uncertain:
            print(f"{more} behind it may never have been committed; they are kept, too")
        print(f"what only {', '.join(given_up)} had acknowledged is lost for good")
    if not dry_run:
        if not yes:
            _ask(path, as_json=as_json)
        done = reset_metastore(path, config, lost=numbers, names=names)
        found |= {
            "done": True,
            "last_index": done.last_index,
            "committed": done.committed,
            "term": done.term,
        }
    if as_json:
        show_json(found)
    elif not dry_run:
        print(f"node {node} is the metastore's only voter now")
        print(
            f"start it with `lowmark serve --data {path}`; then see `lowmark partition list`, and"
            " reset partitions that are read-only or unavailable"
        )


def _number_of(word: str, known: Status) -> int:
    for row in known.nodes:
        if word in (row.name, str(row.number)):
            return row.number
    if word.isascii() and word.isdigit():
        return int(word)  # this copy may not know its name
    names = ", ".join(sorted(row.name for row in known.nodes))
    raise Rejected(f"there is no node {word} in this cluster", hint=f"Its nodes are: {names}.")


def _check_gone(known: Status, numbers: Iterable[int]) -> None:
    """Refuse if a node answers that was named as lost."""
    cluster = known.cluster.id if known.cluster is not None else ""
    endpoints = {row.number: row.endpoint for row in known.nodes if row.endpoint}
    names = {row.number: row.name for row in known.nodes}
    for number in numbers:
        why = answers(endpoints[number], cluster=cluster) if number in endpoints else ""
        if why:
            raise Rejected(
                f"node {names.get(number, str(number))} is not lost: {why}",
                detail="If a majority of the voters is up, the metastore needs no reset. Two"
                " metastores of one cluster would each accept what the other does not have.",
                hint="Stop that process for good first, if its copy shall not count.",
            )


def _ask(path: str, *, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise WrongUse(
            "a reset of the metastore may lose what it knows, and there is no terminal to ask on",
            hint="Look at it with --dry-run, then give --yes.",
        )
    if not typer.confirm(f"Reset the metastore in {path}?", err=True):
        print("nothing was changed", file=sys.stderr)
        raise typer.Exit(FAILED)


def words_of(data: bytes) -> str:
    """Bytes as a person would write them: text as it is, anything else as 0x and hex."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    plain = text.isprintable() and not text.startswith("0x")
    # An earlier release took keys of an object store into the metastore.
    return text_without_credentials(text) if plain else f"0x{data.hex()}"


def bytes_of(words: str) -> bytes:
    """What `words_of` would show so."""
    if words.startswith("0x"):
        try:
            return bytes.fromhex(words[2:])
        except ValueError:
            pass  # then it is text that begins so
    return words.encode(errors="surrogateescape")  # as the shell has them, text or not
