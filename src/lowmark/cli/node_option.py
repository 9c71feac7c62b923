"""Which database a command works on: `--node ADDR`, `--data DIR`, what the environment names, or
the profile in use (`lowmark.runtime.profiles`).

One rule for all commands (`named_place`). An option counts before both variables, so that a shell
in which one of them is set can still ask about another database, and a variable before the profile;
of two options, or two variables without an option, none counts before the other, and the command
says so.

`--node` is added here to each command that opens a database, `--read-only` to those that only read,
and `--token-file` to all that ask a node, so that no command has to pass them on: what was given is
kept with the run, and `opened_database` looks there. There is no option for a token itself: every
user of the machine can see the arguments of a command.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.main import get_command

from lowmark.cli.session import WrongUse, wrong_use

NODE_VARIABLE = "LOWMARK_NODE"
"""As `lowmark.access` has it, which a command imports only when it connects."""
DATA_VARIABLE = "LOWMARK_DATA"
NODE_KEY = "lowmark.node"
CA_VARIABLE = "LOWMARK_CA"
"""As `lowmark.runtime.handshake` has it, which a command imports only when it connects."""
READ_ONLY_KEY = "lowmark.read-only"
_READ = frozenset({"explain", "get", "list", "read", "show", "tide"})
"""Commands that change nothing, by their last word."""
_HELP = (
    "Ask the server at this address: host:port, or unix:PATH; of a cluster, several nodes with"
    f" commas between. Else ${NODE_VARIABLE}, else what the profile names. Both options come"
    " before both variables."
)
_HELP_CA = (
    "The authority that signed the certificates of a server with TLS (lowmark+tls://host:port), as"
    f" a PEM file; else ${CA_VARIABLE}, else those that this machine knows."
)
_HELP_TOKEN = (
    "A file with the token to show; else $LOWMARK_TOKEN, or the file in $LOWMARK_TOKEN_FILE."
)
_HELP_READ = "Never write to the directory; what no process has open is read from its files."


@dataclass(frozen=True, slots=True)
class Place:
    """The address of a server or node, or a directory; or neither, if nothing names one."""

    node: str | None = None
    data: str | None = None


def named_place(node: str | None, data: str | None) -> Place:
    """What these options name or, without them, the environment; else the profile in use."""
    if node is not None and data is not None:
        raise WrongUse(
            "--node and --data can't be given together",
            hint="A command works on one of both: leave one out.",
        )
    if node is not None or data is not None:
        return Place(node, data)
    place = Place(variable(NODE_VARIABLE), variable(DATA_VARIABLE))
    if place.node is not None and place.data is not None:
        raise WrongUse(
            f"${NODE_VARIABLE} ({place.node}) and ${DATA_VARIABLE} ({place.data}) are both set",
            hint="Say which one you mean, by --node ADDR or --data DIR; or unset one of them.",
        )
    return _place_of_profile() if place == Place() else place


def node_of_profile() -> str | None:
    """The node of the profile in use, if there is one and it has one."""
    return _place_of_profile().node


def _place_of_profile() -> Place:
    from lowmark.runtime.profiles import profile_in_use  # noqa: PLC0415 (not to show the version)

    with wrong_use():
        profile = profile_in_use()
    return Place() if profile is None else Place(profile.node or None, profile.data or None)


def variable(name: str) -> str | None:
    """What a variable of the environment names, if anything."""
    return os.environ.get(name, "").strip() or None


def _keep(ctx: typer.Context, value: str | None) -> str | None:
    if value is not None:
        ctx.meta[NODE_KEY] = value
    return value


def _keep_read_only(ctx: typer.Context, value: bool) -> bool:
    if value:
        ctx.meta[READ_ONLY_KEY] = True
    return value


def _keep_ca(ctx: typer.Context, value: str | None) -> str | None:
    """For this run: each client that is made in it believes these authorities."""
    if value is not None:
        set_for_run(ctx, CA_VARIABLE, value)
    return value


def set_for_run(ctx: typer.Context, name: str, value: str) -> None:
    """A variable of the environment, until this command has ended."""
    before = os.environ.get(name)
    os.environ[name] = value

    def restore() -> None:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before

    ctx.call_on_close(restore)


def _use_token_file(ctx: typer.Context, value: str | None) -> str | None:
    if value is not None:
        from lowmark.node.showing import token_file  # noqa: PLC0415 (it imports Arrow)

        ctx.with_resource(token_file(value))
    return value


def _options() -> tuple[Any, Any, Any]:
    alone = typer.Typer(add_completion=False)

    @alone.command()
    def bare(
        node: Annotated[
            str | None, typer.Option("--node", metavar="ADDR", help=_HELP, callback=_keep)
        ] = None,
        read_only: Annotated[
            bool, typer.Option("--read-only", help=_HELP_READ, callback=_keep_read_only)
        ] = False,
        ca: Annotated[
            str | None, typer.Option("--ca", metavar="PATH", help=_HELP_CA, callback=_keep_ca)
        ] = None,
        token: Annotated[
            str | None,
            typer.Option(
                "--token-file", metavar="FILE", help=_HELP_TOKEN, callback=_use_token_file
            ),
        ] = None,
    ) -> None:
        del node, read_only, ca, token

    command: Any = get_command(alone)
    found = {one.name: one for one in command.params}
    for option in found.values():
        option.expose_value = False  # no command has an argument for it
    return found["node"], found["read_only"], [found["ca"], found["token"]]


def offer_node(command: Any) -> Any:
    """The command with these options, and so are all below it, where they open a database."""
    for one in getattr(command, "commands", {}).values():
        offer_node(one)
    names = [name for option in command.params for name in getattr(option, "opts", ())]
    for at, option in enumerate(command.params):
        opens = getattr(option, "metavar", "") == "DIR" and "--data" in option.opts
        if opens and "--node" not in names and "--listen" not in names:
            node, read_only, shown = _options()
            command.params[at + 1 : at + 1] = [node, *shown]
            if command.name in _READ:
                command.params.insert(at + 2, read_only)
            break
        if "--node" in getattr(option, "opts", ()) and option.metavar == "ADDR":
            command.params[at + 1 : at + 1] = _options()[2]
            break
        if "--join" in getattr(option, "opts", ()):  # whom a node believes is in its own folder
            command.params.insert(at + 1, _options()[2][1])
            break
    return command
