"""A Flight server of nobody's, which notes what clients show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyarrow import flight

from lowmark.runtime.tls import TlsFiles


class Noting(flight.FlightServerBase):  # type: ignore[misc]
    """Listens on loopback, by TLS if it has the files of a certificate."""

    def __init__(self, tls: TlsFiles | None = None) -> None:
        self.shown: list[str] = []
        """The `authorization` of each call; empty: the call had none."""
        more: dict[str, Any] = {}
        if tls is not None:
            pair = (Path(tls.certificate).read_bytes(), Path(tls.key).read_bytes())
            more = {"tls_certificates": [pair]}
        super().__init__(
            f"grpc{'' if tls is None else '+tls'}://127.0.0.1:0",
            middleware={"notes": _Notes(self.shown)},
            **more,
        )
        self.address = f"{'' if tls is None else 'lowmark+tls://'}127.0.0.1:{self.port}"


class _Notes(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, shown: list[str]) -> None:
        self._shown = shown

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        del info
        self._shown.append("".join(headers.get("authorization", [])))
