"""The catalog for clients: commands to carry out. Versions are read from the metastore."""

from __future__ import annotations

from lowmark.catalog import Catalogs, Executed, read_commands
from lowmark.group import Future
from lowmark.node.bridge import Bridge
from lowmark.node.messages import CatalogStatus, ExecuteAsk, ExecutedReply
from lowmark.node.server import Action, reply
from lowmark.runtime import millis_of

EXECUTE_S = 120.0
"""Longer than the catalog itself waits for anything."""


class CatalogActions:
    """What clients may ask of a node's catalog."""

    def __init__(self, catalogs: Catalogs, bridge: Bridge) -> None:
        self._catalogs = catalogs
        self._bridge = bridge

    def actions(self) -> dict[str, Action]:
        """By name."""
        return {"catalog.execute": reply(ExecuteAsk, self._execute)}

    def status(self) -> CatalogStatus:
        """Which versions there are here. On the loop."""
        catalogs = self._catalogs
        failed = catalogs.failed
        return CatalogStatus(
            version=catalogs.latest.version,
            earliest=catalogs.earliest.version,
            problem=failed.message if failed is not None else "",
        )

    def _execute(self, asked: ExecuteAsk) -> ExecutedReply:
        commands = read_commands(asked.commands)

        def execute() -> Future[Executed]:
            return self._catalogs.execute(commands)

        done = self._bridge.ask(execute, timeout_s=EXECUTE_S)
        return ExecutedReply(
            version=done.catalog.version,
            active_from_ms=millis_of(done.catalog.activates_at),
            applied=done.applied,
        )
