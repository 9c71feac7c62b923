"""`lowmark meta`: look into the metastore."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated

import typer

from lowmark.cli.output import Cell, Json, show_facts, show_json, show_table
from lowmark.cli.session import FAILED, help_if_bare
from lowmark.cli.source import DataOption, NodeOption, opened_source
from lowmark.formatting import time_text
from lowmark.node import StoredEntry, WatchEvent, WatchStarted

app = typer.Typer(invoke_without_command=True)

KeyArgument = Annotated[
    str, typer.Argument(metavar="KEY", help="As text, or 0x and hex for any bytes.")
]
PrefixArgument = Annotated[
    str, typer.Argument(metavar="[PREFIX]", help="Keys that begin so; without it, all.")
]
AtOption = Annotated[
    int | None, typer.Option("--at", min=0, metavar="REV", help="As of this revision.")
]


@app.callback()
def meta(ctx: typer.Context) -> None:
    """Look into the metastore: keys with revisions, and what became of them."""
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
            "--from", min=1, metavar="REV", help="Begin with this one; else with the next."
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

    In a data directory nothing happens any more: what its node knew is printed, from --from on.

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


def words_of(data: bytes) -> str:
    """Bytes as a person would write them: text as it is, anything else as 0x and hex."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    plain = text.isprintable() and not text.startswith("0x")
    return text if plain else f"0x{data.hex()}"


def bytes_of(words: str) -> bytes:
    """What `words_of` would show so."""
    if words.startswith("0x"):
        try:
            return bytes.fromhex(words[2:])
        except ValueError:
            pass  # then it is text that begins so
    return words.encode(errors="surrogateescape")  # as the shell has them, text or not
