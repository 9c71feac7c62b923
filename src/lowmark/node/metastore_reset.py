"""The metastore's majority is lost for good: have the copy in one directory go on alone.

The node of the directory is stopped. Steps, and what is true after each:

    1. the directory is locked, and it is checked that every other voter was named as lost, and no
       node besides. Nothing has changed
    2. the copy is reset (`group.reset`): its only voter is this node. A crash leaves it as it was,
       or reset
    3. the node is started: it leads, and writes down what has become of the others
       (`placement.members`)

What only the lost voters had acknowledged is lost: tables that were just created, say, or where a
partition was moved to. Other nodes that are still there have copies of the metastore from before:
they throw those away and get new ones (`metastore.cluster`).
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from lowmark.errors import LowmarkError, Rejected, Unavailable
from lowmark.group import Reset, reset_members
from lowmark.group.rejoin import forget_lost
from lowmark.group.reset import other_voters
from lowmark.log import Log, LogConfig
from lowmark.metastore import GROUP, Identity, check_metastore, find_identity
from lowmark.node.client import NodeClient
from lowmark.node.directory import log_disk
from lowmark.runtime import Runtime, host_and_port, real_runtime

WRITE_MS = 60_000
ANSWER_S = 3.0


@dataclass(frozen=True, slots=True)
class _Opened:
    runtime: Runtime
    log: Log
    identity: Identity


@contextlib.contextmanager
def _opened(path: str, config: LogConfig, *, read_only: bool) -> Iterator[_Opened]:
    disk = log_disk(path)
    identity = find_identity(disk)
    with contextlib.ExitStack() as opened:
        runtime = real_runtime(path)
        opened.callback(runtime.loop.close)
        log = Log.open(runtime, config, read_only=read_only)
        opened.callback(log.close)
        if identity is None or not any(one.name == GROUP and one.meta for one in log.groups()):
            if identity is not None:
                check_metastore(disk, log, identity)
            raise Rejected(
                f"{path} has no copy of the metastore",
                detail="Its node never was in a cluster, or was not let in yet.",
                hint="Give the directory of a node that has one.",
            )
        if identity.renewing:
            raise Rejected(
                f"the copy of the metastore in {path} is outdated",
                detail="The metastore was reset on another node: this copy is no longer a member.",
                hint="Start the node: it gets a new copy from the others.",
            )
        yield _Opened(runtime, log, identity)


def voters_besides(path: str, config: LogConfig) -> frozenset[int]:
    """The voters of the metastore besides the node of a directory, as far as its copy knows."""
    with _opened(path, config, read_only=True) as opened:
        return other_voters(opened.log.group(GROUP), opened.identity.number)


def check_lost(
    path: str, others: Collection[int], lost: Collection[int], names: dict[int, str]
) -> None:
    """Refuse unless all other voters, and no other nodes, are named as lost."""

    def named(numbers: Collection[int]) -> list[str]:
        return [names.get(one, str(one)) for one in sorted(numbers)]

    if not others:
        raise Rejected(
            f"the metastore in {path} has no other voter: there is nothing to reset",
            hint="Start its node with `lowmark serve`.",
        )
    strange = frozenset(lost) - frozenset(others)
    if strange:
        raise Rejected(
            f"not a voter of the metastore: {', '.join(named(strange))}",
            detail=f"The voters besides this node are {', '.join(named(others))}.",
            hint="Name only these as lost. Remove other nodes that are lost with `lowmark node"
            " remove`, when the metastore is back.",
        )
    missing = frozenset(others) - frozenset(lost)
    if missing:
        words = " ".join(f"--lost {one}" for one in named(missing))
        raise Rejected(
            "the metastore can't be reset: its lost voters must be named",
            detail="What only they had acknowledged is gone for good after a reset.",
            hint=f"If they will never come back with their disks, add {words}. If a majority of"
            " the voters can be started, start it: then no reset is needed.",
        )


def answers(endpoint: str, *, cluster: str) -> str:
    """Why the node at an endpoint can't be lost; empty if it may be.

    A process that listens there and gives no answer may be a node that is suspended. One that
    answers as a node of another cluster is another node.
    """
    try:
        with socket.create_connection(host_and_port(endpoint), timeout=ANSWER_S):
            pass
    except OSError:
        return ""
    try:
        with NodeClient(endpoint, timeout_s=ANSWER_S) as client:
            peer = client.peer()
    except LowmarkError as error:
        return f"a process listens at {endpoint}: {error.message}"
    if peer.cluster and cluster and peer.cluster != cluster:
        return ""
    return f"it answers at {endpoint}"


def reset_metastore(
    path: str, config: LogConfig, *, lost: Collection[int], names: dict[int, str]
) -> Reset:
    """Make the copy in a directory the metastore's only voter. Its node must be stopped."""
    with _opened(path, config, read_only=False) as opened:
        node, copy = opened.identity.number, opened.log.group(GROUP)
        check_lost(path, other_voters(copy, node), lost, names)
        came_to: list[LowmarkError | None] = []
        found = reset_members(copy, node, on_done=came_to.append)
        try:
            opened.runtime.loop.run_until(lambda: bool(came_to), timeout_ms=WRITE_MS)
        except TimeoutError:
            raise Unavailable(
                f"the reset could not be written to {path} in {WRITE_MS // 1_000} s",
                hint="See to its disk, and give the command again.",
            ) from None
        if came_to[0] is not None:
            raise came_to[0]
        forget_lost(opened.runtime.disk, GROUP)  # this copy is not given up
        return found
