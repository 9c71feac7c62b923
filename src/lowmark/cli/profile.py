"""`lowmark profile`: the databases that a user works with, by name."""

from __future__ import annotations

from typing import Annotated

import typer

from lowmark.cli.output import Cell, Json, show_facts, show_table
from lowmark.cli.session import help_if_bare, wrong_use
from lowmark.runtime.profiles import (
    Profile,
    named_profile,
    profile_name,
    profiles,
    profiles_file,
)

app = typer.Typer(invoke_without_command=True)


@app.callback()
def profile(ctx: typer.Context) -> None:
    """List and show profiles: databases that you work with, by name, in a file of yours.

    The file is the one that $LOWMARK_CONFIG names, else lowmark/config.toml in $XDG_CONFIG_HOME,
    else ~/.config/lowmark/config.toml. A section [profile.NAME] has some of these keys: node (one
    address, or a list), data (a directory, instead of a node), ca, token_file, token, settings.

    Commands use a profile that is named: lowmark --profile NAME, or $LOWMARK_PROFILE. What another
    option names comes before it, and so does what a variable names.
    """
    help_if_bare(ctx)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the profiles of the file, and which of them is in use.

    With --json, a list: name, in_use, node, data, ca, token_file, token (whether the file has it),
    settings. No token is shown.

    Example: lowmark profile list
    """
    with wrong_use():
        rows = [_row(one) for one in profiles().values()]
    columns = ["name", "in_use", "node", "data", "ca", "token_file", "token", "settings"]
    show_table(rows, columns=columns, as_json=as_json)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The profile's name.")],
    as_json: Json = False,
) -> None:
    """Show a profile: its paths as they are used, and whether it has a token.

    With --json, one object as of `lowmark profile list`, and file.

    Example: lowmark profile show prod
    """
    with wrong_use():
        found = named_profile(name)
    show_facts({**_row(found), "file": profiles_file()}, as_json=as_json)


def _row(one: Profile) -> dict[str, Cell]:
    return {
        "name": one.name,
        "in_use": one.name == profile_name(),
        "node": one.node or None,
        "data": one.data or None,
        "ca": one.ca or None,
        "token_file": one.token_file or None,
        "token": bool(one.token),
        "settings": one.settings or None,
    }
