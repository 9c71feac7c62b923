"""`lowmark tls`: certificates for nodes, by an authority of the cluster's own."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Annotated

import typer

from lowmark.backend.errors import PackageMissing
from lowmark.cli.output import Json, show_facts, show_json, show_table
from lowmark.cli.session import help_if_bare
from lowmark.formatting import counted, time_text

app = typer.Typer(invoke_without_command=True)

_Folder = Annotated[
    str, typer.Argument(metavar="DIR", help="The authority's directory; keep it to yourself.")
]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="The node, and its folder in DIR.")]


@app.callback()
def tls(ctx: typer.Context) -> None:
    """Make certificates: an authority of the cluster's own, and a folder for each node.

    Certificates of any other authority do as well: a node needs a folder with ca.pem, cert.pem
    and key.pem, and takes it by `lowmark serve --tls FOLDER`.
    """
    help_if_bare(ctx)


@app.command()
def init(folder: _Folder, as_json: Json = False) -> None:
    """Make an authority: DIR/ca.pem, which nodes and clients believe, and its key, DIR/ca.key.

    Who has the key can be any node: keep the directory where no node runs. It is never
    overwritten. With --json, one object: authority, key, ends_at_ms.

    Example: lowmark tls init ./tls
    """
    with needed():
        from lowmark.authority import Authority  # noqa: PLC0415 (it is optional)
    made = Authority.found(folder)
    ends = made.certificate.not_valid_after_utc
    facts = {"authority": f"{folder}/ca.pem", "key": f"{folder}/ca.key"}
    if as_json:
        show_json(facts | {"ends_at_ms": int(ends.timestamp() * 1_000)})
    else:
        show_facts(facts | {"ends": f"{ends:%Y-%m-%d}"}, as_json=False)


@app.command()
def issue(
    folder: _Folder,
    name: _Name,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="A name or an address by which others reach the node; repeatable.",
            show_default="those of its last certificate",
        ),
    ] = None,
    days: Annotated[int, typer.Option(metavar="N", help="How long it is valid.")] = 365,
    as_json: Json = False,
) -> None:
    """Issue a node's folder, DIR/NAME: ca.pem, cert.pem and key.pem. Again, it renews them.

    Copy the folder to the node. A node that runs takes new files up within a second or two; copy
    key.pem before cert.pem, or both under other names first.

    Give every host by which clients and other nodes reach the node. Wildcards do not count. With
    --json, one object: name, folder, hosts, serial, ends_at_ms.

    Example: lowmark tls issue ./tls n1 --host n1.example --host 10.0.0.7
    """
    with needed():
        from lowmark.authority import Authority  # noqa: PLC0415 (it is optional)
    issued = Authority.of(folder).issue(name, host or (), days=days)
    if as_json:
        show_json(
            {
                "name": name,
                "folder": f"{folder}/{name}",
                "hosts": list(issued.hosts),
                "serial": issued.serial,
                "ends_at_ms": issued.ends_at_ms,
            }
        )
        return
    facts = {
        "folder": f"{folder}/{name}",
        "hosts": ", ".join(issued.hosts),
        "serial": issued.serial,
        "ends": time_text(issued.ends_at_ms)[:10],
    }
    show_facts(facts, as_json=False)


@app.command()
def revoke(folder: _Folder, name: _Name, as_json: Json = False) -> None:
    """Revoke all certificates of a node: other nodes refuse it, and cut the links that they have.

    The list is written to DIR/crl.pem and to crl.pem in each folder in DIR. Copy it into the folder
    of each node that runs elsewhere; the nodes read it within a second or two. Clients read no
    list: what is revoked at an endpoint are tokens.

    With --json, one object: name, revoked (serial numbers that are new on the list), lists (files).

    Example: lowmark tls revoke ./tls n3
    """
    with needed():
        from lowmark.authority import Authority  # noqa: PLC0415 (it is optional)
    done = Authority.of(folder).revoke(name)
    if as_json:
        show_json({"name": name, "revoked": list(done.serials), "lists": list(done.lists)})
        return
    what = counted(len(done.serials), "certificate")
    print(f"{what} of {name} revoked now" if done.serials else f"{name} was revoked before")
    for path in done.lists:
        print(f"  {path}")


@app.command()
def show(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A PEM file, a node's folder, or an authority's.")
    ],
    as_json: Json = False,
) -> None:
    """Show certificates and lists of revoked ones: for which hosts, until when, and what is wrong.

    In a node's folder its certificate is held against the key, the authority and the list beside
    it. The state is valid, ended, to come, revoked, or unusable.

    With --json, a list: file, kind (certificate, authority or list), name, hosts, state, why,
    ends_at_ms, days_left, issuer, serial, fingerprint (SHA-256), revoked (serial numbers).

    Example: lowmark tls show ./tls
    """
    with needed():
        from lowmark.authority import shown_at  # noqa: PLC0415 (it is optional)
        from lowmark.authority.showing import Shown  # noqa: PLC0415
    found: list[Shown] = shown_at(path)
    if as_json:
        show_json([dataclasses.asdict(one) for one in found])
        return
    show_table(
        [
            {
                "file": one.file,
                "kind": one.kind,
                "name": one.name or f"{counted(len(one.revoked), 'certificate')} revoked",
                "hosts": ", ".join(one.hosts) or None,
                "state": one.state,
                "ends": time_text(one.ends_at_ms)[:10] if one.ends_at_ms is not None else None,
                "days_left": one.days_left,
                "why": one.why or None,
            }
            for one in found
        ],
        columns=("file", "kind", "name", "hosts", "state", "ends", "days_left", "why"),
        as_json=False,
    )


@contextlib.contextmanager
def needed() -> Iterator[None]:
    """What is missing by its name; any other failure of an import as it is."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "cryptography":
            raise
        raise PackageMissing("cryptography", needed_for="lowmark tls") from error
