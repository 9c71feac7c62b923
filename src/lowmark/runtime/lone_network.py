"""The network of a node that nobody can reach, and that reaches nobody: inside one process."""

from __future__ import annotations

from collections.abc import Sequence

from lowmark.runtime.disk import Buffer
from lowmark.runtime.network import Endpoint, OnCut, OnFrame, OnRoom, ignore_room


class _Nowhere:
    """An address that exists in name only. What is sent from it is lost, as frames may be."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.listens_at = address

    def send(self, to: str, buffers: Sequence[Buffer]) -> bool:
        del to, buffers
        return True

    def queued_bytes(self, to: str) -> int:
        del to
        return 0

    def pause(self, peer: str) -> None:
        del peer

    def resume(self, peer: str) -> None:
        del peer

    def cut(self, peer: str, reason: str) -> None:
        del peer, reason

    def close(self) -> None:
        pass


class LoneNetwork:
    """Opens nothing."""

    def endpoint(
        self,
        address: str,
        on_frame: OnFrame,
        on_cut: OnCut,
        *,
        on_room: OnRoom = ignore_room,
        listen: str | None = None,
    ) -> Endpoint:
        """An endpoint that no frame ever comes to."""
        del on_frame, on_cut, on_room, listen
        return _Nowhere(address)


LONE_NETWORK = LoneNetwork()
