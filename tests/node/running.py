"""Nodes of this process, each on a thread of its own, as real as they get."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from lowmark.group import GroupConfig
from lowmark.metastore import MetastoreConfig
from lowmark.node import Node, NodeClient, NodeOptions, Settings

__all__ = ["QUICK", "Running"]

QUICK = Settings(
    group=GroupConfig(tick_ms=20),
    metastore=MetastoreConfig(lease_ms=1_000, request_timeout_ms=5_000, watch_patience_ms=2_000),
)
DEADLINE_S = 30.0


class Running:
    """A node that runs while the `with` lasts."""

    def __init__(
        self,
        data: Path,
        *,
        name: str = "",
        join: str = "",
        tls: str = "",
        settings: Settings = QUICK,
        tokens: bool = False,
    ) -> None:
        options = NodeOptions(
            data=str(data), listen="127.0.0.1:0", name=name, join=join, tls=tls, tokens=tokens
        )
        self.node = Node(options, settings)
        self.failure: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="a node")
        self._clients: list[NodeClient] = []

    def _run(self) -> None:
        try:
            self.node.run(self._ready.set)
        except BaseException as failure:
            self.failure = failure
            self._ready.set()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(DEADLINE_S)
        if self.failure is not None:
            raise self.failure
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if error is None and self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        self.node.stop()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        for client in self._clients:
            client.close()

    @property
    def endpoint(self) -> str:
        return self.node.info.endpoint

    def client(self) -> NodeClient:
        client = NodeClient(self.endpoint, ca=self.node.tls.ca, timeout_s=DEADLINE_S)
        self._clients.append(client)
        return client
