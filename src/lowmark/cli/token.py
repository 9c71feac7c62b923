"""`lowmark token`: who may call the nodes of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowmark.cli.database import DatabaseOption, opened_database
from lowmark.cli.output import Cell, Json, show_facts, show_json, show_table
from lowmark.cli.session import help_if_bare, settings_of, wrong_use
from lowmark.formatting import time_text
from lowmark.node import data_path
from lowmark.node.token_messages import TokenReply
from lowmark.node.token_reset import reset_token

app = typer.Typer(invoke_without_command=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The token's name.")]


@app.callback()
def token(ctx: typer.Context) -> None:
    """Create, list and revoke tokens, which clients show to a cluster that asks for them.

    The first token, of an administrator, is in the file admin.token in the data directory of the
    node that founded the cluster.
    """
    help_if_bare(ctx)


@app.command()
def create(
    ctx: typer.Context,
    name: NameArgument,
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="How long it is valid: 30d, '36 hours'.", show_default="for ever"
        ),
    ] = None,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Create a token and print it, this once: no node keeps it.

    A name has one token. With --json, one object: name, token, expires (null: never).

    Example: lowmark token create nightly-job --expires 30d --node 127.0.0.1:6570
    """
    with opened_database(ctx, data) as database:
        made = database.tokens.create(name, expires=expires)
    ends = None if made.expires_ms is None else time_text(made.expires_ms)
    if as_json:
        show_json({"name": made.name, "token": made.token, "expires": ends})
    else:
        print(made.token)


@app.command("list")
def list_(ctx: typer.Context, data: DatabaseOption = None, as_json: Json = False) -> None:
    """List the tokens: their names, when they were created and by which token, when they expire.

    One that has expired or was revoked is listed for 30 days more. The secret is never shown.

    With --json, a list: name, role, state (in force, expired, revoked), created, by, expires,
    revoked, revoked_by.

    Example: lowmark token list --node 127.0.0.1:6570
    """
    with opened_database(ctx, data) as database:
        rows = [_row(one) for one in database.tokens.list()]
    columns = [
        "name", "role", "state", "created", "by", "expires", "revoked", "revoked_by"
    ]  # fmt: skip
    show_table(rows, columns=columns, as_json=as_json)


@app.command()
def revoke(
    ctx: typer.Context, name: NameArgument, data: DatabaseOption = None, as_json: Json = False
) -> None:
    """Revoke a token: nodes refuse it within a second, on open connections, too.

    With --json, one object as of `lowmark token list`.

    Example: lowmark token revoke nightly-job --node 127.0.0.1:6570
    """
    with opened_database(ctx, data) as database:
        revoked = database.tokens.revoke(name)
    if as_json:
        show_json(_row(revoked))
    else:
        print(f"token {revoked.name} is revoked")


@app.command()
def reset(
    ctx: typer.Context,
    data: Annotated[
        Path,
        typer.Option("--data", metavar="PATH", help="The directory of a node that is stopped."),
    ],
    as_json: Json = False,
) -> None:
    """Make a new token of an administrator, if the first one is lost or there never was one.

    The node of the directory must be stopped. It has the token in force as soon as it is started
    and reaches a majority; then the token is in the file admin.token in the directory. The token
    of the name admin that was there before is refused from then on.

    With --json, one object: data, file.

    Example: lowmark token reset --data ./n1
    """
    with wrong_use():
        path = data_path(data)
    file = reset_token(path, settings_of(ctx).log)
    if as_json:
        show_facts({"data": path, "file": file}, as_json=True)
    else:
        print(f"start the node: its new token is then in {file}")


def _row(one: TokenReply) -> dict[str, Cell]:
    return {
        "name": one.name,
        "role": one.role,
        "state": one.state,
        "created": time_text(one.created_ms),
        "by": one.by or None,
        "expires": None if one.expires_ms is None else time_text(one.expires_ms),
        "revoked": None if one.revoked_ms is None else time_text(one.revoked_ms),
        "revoked_by": one.revoked_by or None,
    }
