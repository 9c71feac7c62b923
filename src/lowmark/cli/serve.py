"""`lowmark serve`: run a node."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Annotated

import typer

from lowmark.cli.dev import serve_dev
from lowmark.cli.output import Json
from lowmark.cli.session import settings_of, wrong_use
from lowmark.cli.strangers import warn_of_strangers
from lowmark.errors import Rejected
from lowmark.metastore import MetastoreRenewed
from lowmark.node import DEFAULT_ENDPOINT, Guard, Node, NodeOptions, check_directory, data_path
from lowmark.node.addresses import place_of
from lowmark.node.tls import only_tls_1_3
from lowmark.server.on_node import attach

SWITCH_INTERVAL_SECONDS = 0.0005
"""At Python's default of 5 ms, a thread that syncs waits ten times longer beside a busy one."""


def serve(
    ctx: typer.Context,
    data: Annotated[
        str, typer.Option(metavar="DIR", help="The data directory; made if it is not there.")
    ],
    listen: Annotated[
        str,
        typer.Option(
            metavar="ADDR",
            help="Where this node listens for clients, as 127.0.0.1:6570, [::1]:6570 or"
            " db1.example:6570; port 0 is a free one.",
        ),
    ] = DEFAULT_ENDPOINT,
    advertise: Annotated[
        str,
        typer.Option(
            metavar="ADDR",
            help="The address that clients connect to; needed if it listens at all addresses"
            " (0.0.0.0 or [::]).",
            show_default="--listen",
        ),
    ] = "",
    peers: Annotated[
        str,
        typer.Option(
            metavar="ADDR", help="Where it listens for other nodes.", show_default="next port"
        ),
    ] = "",
    advertise_peers: Annotated[
        str,
        typer.Option(
            metavar="ADDR",
            help="The address that other nodes connect to.",
            show_default="the host of --advertise, the port of --peers",
        ),
    ] = "",
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Allow addresses that other machines can reach, without TLS and tokens: all who"
            " reach them can read and change all data.",
        ),
    ] = False,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Take only calls that show a token.")
    ] = False,
    join: Annotated[
        str,
        typer.Option(
            metavar="ADDR",
            help="Join the cluster of the node that listens there; of several, with commas"
            " between, the first that answers.",
        ),
    ] = "",
    name: Annotated[str, typer.Option(help="A name for this node, unique in the cluster.")] = "",
    rack: Annotated[
        str | None,
        typer.Option(
            help="The rack: nodes of one rack fail together.", show_default="the last one"
        ),
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="For filters of zones; repeatable.",
            show_default="the last ones",
        ),
    ] = None,
    tls: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            help="A folder with ca.pem, cert.pem and key.pem, as `lowmark tls issue` makes it.",
            show_default="no TLS",
        ),
    ] = "",
    tls_mode: Annotated[
        str,
        typer.Option(
            metavar="allow|require",
            help="allow: take nodes without TLS, too, while a cluster goes over to it.",
        ),
    ] = "require",
    dev: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Run N nodes on this machine, to try a cluster; data in DIR/n1, DIR/n2 and so on.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a node, until Ctrl-C or SIGTERM.

    Without --join, a new data directory founds a cluster. One that belongs to a cluster goes back
    to it by itself; with --join, only if that names a node of the same cluster. One that `lowmark
    node replace` has prepared takes the place of a lost node.

    The data directory keeps name, rack and attributes: a start without them has those of the last
    one. Another --rack changes it, and may move replicas; --rack "" takes it away. --attribute
    replaces all attributes; --attribute "" takes them away.

    A node that founds a cluster writes the token of an administrator to the file admin.token in its
    directory. With --tokens the node takes only calls that show a token; give it to all nodes of a
    cluster. A node that joins such a cluster shows one, too: --token-file, or $LOWMARK_TOKEN.

    Clients and other nodes are sent to where the node listens, or to --advertise and
    --advertise-peers: a name is looked up at each connection. Addresses can be others at the next
    start; the cluster learns them from the node.

    When the node is ready it says so in one line on stdout; with --json, as one object: name,
    number, listen, advertise, peers, advertise_peers, insecure, data, pid.

    If an operator resets the metastore on another node, this node gets a new copy of it: the
    process starts itself again, and says once more that it is ready.

    With --dev 3, three nodes are started, each in a process of its own, and all end with this one.
    Then --tls DIR names an authority (lowmark tls init), which is made if it is not there, and
    which issues their certificates.

    Example: lowmark serve --data n2 --listen 127.0.0.1:6572 --join 127.0.0.1:6570
    """
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    only_tls_1_3()
    with wrong_use():
        data = data_path(data) if data.strip() else data
        others = advertise or peers or advertise_peers or insecure or join or name or attribute
        if dev is not None and (others or rack is not None or tls_mode != "require"):
            raise Rejected(
                "--dev starts nodes of its own: they have no other options",
                hint="Leave out all but --data, --listen, --tls, --tokens, --dev and --json.",
            )
    if dev is not None:
        with wrong_use():
            if not data.strip():
                raise Rejected("--data names no directory", hint="Write --data ./try.")
            place_of(listen, guard=Guard(tls=bool(tls), tokens=tokens))
        serve_dev(dev, data, listen, tls=tls, tokens=tokens, as_json=as_json)
        return
    options = NodeOptions(
        data=data,
        listen=listen,
        advertise=advertise,
        peers=peers,
        advertise_peers=advertise_peers,
        insecure=insecure,
        join=join,
        name=name,
        rack=rack,
        attributes=None if attribute is None else _attributes(attribute),
        tls=tls,
        tls_mode=tls_mode,
        tokens=tokens,
    )
    with wrong_use():
        if not data.strip():
            raise Rejected("--data names no directory", hint="Write --data ./n1.")
        options.check()
        check_directory(options.data, create=True)
    node = Node(options, settings_of(ctx))
    warn_of_strangers(node.open_at, "this node")
    for number in (signal.SIGINT, signal.SIGTERM):
        node.loop.asyncio.add_signal_handler(number, node.stop)

    def ready() -> None:
        attach(node, data)
        _say_ready(node, data, as_json=as_json)

    try:
        node.run(ready)
    except MetastoreRenewed as renewed:
        # Its copy is thrown away at the next start. Whatever is left of this process, threads of
        # clients and all, ends with it.
        print(f"note: {renewed.message}; starting again", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os.execv(sys.executable, sys.orig_argv)
    if node.stuck:
        # Everything is closed, but for a thread that hands results to a client who takes none;
        # nothing can end it, and Python would wait for it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _attributes(words: list[str]) -> dict[str, str]:
    found = {}
    for word in words if words != [""] else ():
        key, equals, value = word.partition("=")
        with wrong_use():
            if not equals or not key:
                raise Rejected(f"{word!r} is not an attribute", hint="Write --attribute key=value.")
        found[key] = value
    return found


def _say_ready(node: Node, data: str, *, as_json: bool) -> None:
    info, clients, peers = node.info, node.place, node.peers_place
    if as_json:
        facts = {
            "name": info.name,
            "number": info.number,
            "listen": clients.listens_at,
            "advertise": info.endpoint,
            "peers": peers.listens_at,
            "advertise_peers": peers.advertised,
            "insecure": bool(node.open_at),
            "data": data,
            "pid": os.getpid(),
        }
        print(json.dumps(facts, ensure_ascii=False), flush=True)
        return
    words = f"{info.name} listens at {clients.listens_at}, for nodes at {peers.listens_at}"
    sent = {"clients": (clients, info.endpoint), "nodes": (peers, peers.advertised)}
    for what, (place, address) in sent.items():
        if address != place.listens_at:
            words += f"; {what} are sent to {address}"
    print(words, flush=True)
