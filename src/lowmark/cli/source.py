"""Where a command reads from: a running node, or a data directory; if a process has that open, the
process.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Protocol

import typer

from lowmark.access.directory import owner_of, unreachable
from lowmark.cli.node_option import (
    DATA_VARIABLE,
    NODE_VARIABLE,
    named_place,
    node_of_profile,
    variable,
)
from lowmark.cli.session import settings_of, wrong_use
from lowmark.cli.strangers import warn_of_strangers
from lowmark.errors import Corrupt, LowmarkError, Rejected, Unavailable
from lowmark.inspect import open_offline
from lowmark.node import (
    DEFAULT_ENDPOINT,
    GetReply,
    HistoryPage,
    NodeClient,
    NodeUnreachable,
    RangePage,
    Status,
    WatchEvent,
    WatchStarted,
    data_path,
)
from lowmark.runtime import DiskFailed
from lowmark.runtime.network import named_together
from lowmark.runtime.refusals import ServerNotTrusted, TlsNeeded, TlsNotSpoken

NodeOption = Annotated[
    str | None,
    typer.Option(
        "--node",
        metavar="ADDR",
        help=f"Ask the node at this endpoint; else ${NODE_VARIABLE}, else {DEFAULT_ENDPOINT}.",
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help=f"Read a data directory; of one that is open, ask its process; else ${DATA_VARIABLE}.",
    ),
]


_LOOK_S = 2.0
"""A node that says nothing for so long is passed over, if several are named."""
_REFUSED = (ServerNotTrusted, TlsNeeded, TlsNotSpoken)


class Source(Protocol):
    """What both can say."""

    def status(self) -> Status: ...
    def get(self, key: bytes, *, at: int | None = None) -> GetReply: ...
    def range(
        self,
        prefix: bytes = b"",
        *,
        at: int | None = None,
        limit: int | None = None,
        keys_only: bool = False,
    ) -> Iterator[RangePage]: ...
    def history(self, key: bytes) -> Iterator[HistoryPage]: ...
    def watch(
        self, prefix: bytes = b"", *, from_revision: int | None = None
    ) -> Iterator[WatchStarted | WatchEvent]: ...


def node_client(node: str | None) -> NodeClient:
    """A client of the node that was named, or of the usual one: for what only a node can do."""
    if node is None:
        # (a directory counts for nothing here: it is asked for by nodes alone)
        node = variable(NODE_VARIABLE) or node_of_profile()
    with wrong_use(), contextlib.ExitStack() as stack:
        addresses = named_together((node or DEFAULT_ENDPOINT).split(","))
        clients = [
            stack.enter_context(NodeClient(address, timeout_s=_LOOK_S)) for address in addresses
        ]
        stack.pop_all()
    return NodeClient(_first_that_can(clients))


def _first_that_can(clients: Sequence[NodeClient]) -> str:
    """The address of the first node that can do what it is asked. Without one, that of the first
    which answers at all: one that is cut off from the others still says what is wrong, and repairs
    it. The command itself says why the one that it goes to can't do it.
    """
    cut_off, refused, away = list[str](), list[str](), list[str]()
    for client in clients:
        with client:
            try:
                warn_of_strangers(client.guard().open_at)
                return client.address
            except NodeUnreachable:
                away.append(client.address)
            except _REFUSED:
                refused.append(client.address)
            except Unavailable:  # it is closing or starting, or does not know the tokens
                cut_off.append(client.address)
            except LowmarkError:
                return client.address  # the others would say the same
    return [*cut_off, *refused, *away][0]


def _warn_of_strangers(address: str) -> None:
    """Before the command, which says itself if the node does not answer."""
    with contextlib.suppress(LowmarkError), NodeClient(address, timeout_s=_LOOK_S) as client:
        warn_of_strangers(client.guard().open_at)


@contextlib.contextmanager
def opened_source(
    ctx: typer.Context, node: str | None, data: Path | None, *, damaged_ok: bool = False
) -> Iterator[Source]:
    """What the command line names; a directory that can't be read whole only if that is ok."""
    place = named_place(node, None if data is None else str(data))
    if place.data is None:
        with node_client(place.node) as client:
            yield client
        return
    with wrong_use():
        data = Path(data_path(place.data))
        if not data.is_dir():
            raise Rejected(f"there is no directory {data}")
    owner = owner_of(str(data))
    if owner is not None and owner.address:
        _warn_of_strangers(owner.address)
        with NodeClient(owner.address) as client:
            try:
                yield client
            except NodeUnreachable as error:
                raise unreachable(str(data), owner, error) from error
        return
    with open_offline(str(data), settings_of(ctx).log) as store:
        if store.problem and not damaged_ok:
            raise store.damage()
        if store.problem or store.doubt:
            print(f"note: {data}: {store.problem or store.doubt}", file=sys.stderr)
        try:
            yield store
        except (Corrupt, DiskFailed) as error:  # of a value: they are read when they are asked for
            raise store.damage(error) from error
