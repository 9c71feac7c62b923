"""What an operator asks of a cluster through the port: a node's actions, and their bodies.

They travel as JSON, as a node's own clients send them (`lowmark.node.messages`). Callers that may
not know nodes take the values from here.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from lowmark.backend.errors import ReadOnly
from lowmark.backend.port import Backend
from lowmark.errors import Corrupt
from lowmark.node.catalog_rounds import RoundsReply
from lowmark.node.messages import (
    BaselineAsk,
    BaselineReply,
    CancelAsk,
    CancelledReply,
    ChangeAsk,
    CompactCatalogAsk,
    DrainAsk,
    DrainReply,
    MoveRow,
    NewNode,
    NodeReply,
    Nothing,
    PartitionName,
    PlanAsk,
    PlannedRow,
    PlanReply,
    RebalanceReply,
    RebalanceSettings,
    RemoveNodeAsk,
    StuckDrain,
    only_looks,
)
from lowmark.node.token_messages import (
    CreateTokenAsk,
    EndPassAsk,
    MakePassAsk,
    PassReply,
    RevokeTokenAsk,
    TokenReply,
    TokensReply,
)
from lowmark.upkeep import Holder as CatalogHolder
from lowmark.upkeep import Round as CatalogRound

__all__ = [
    "BaselineAsk",
    "BaselineReply",
    "CancelAsk",
    "CancelledReply",
    "CatalogHolder",
    "CatalogRound",
    "ChangeAsk",
    "CompactCatalogAsk",
    "CreateTokenAsk",
    "DrainAsk",
    "DrainReply",
    "EndPassAsk",
    "MakePassAsk",
    "MoveRow",
    "NewNode",
    "NodeReply",
    "Nothing",
    "PartitionName",
    "PassReply",
    "PlanAsk",
    "PlanReply",
    "PlannedRow",
    "RebalanceReply",
    "RebalanceSettings",
    "RemoveNodeAsk",
    "RevokeTokenAsk",
    "RoundsReply",
    "StuckDrain",
    "TokenReply",
    "TokensReply",
    "check_looks",
    "operated",
]

T = TypeVar("T")


def operated(backend: Backend, action: str, asked: msgspec.Struct, answer: type[T]) -> T:
    """What comes of an action."""
    said = backend.operate(action, msgspec.json.encode(asked))
    try:
        return msgspec.json.decode(said, type=answer)
    except msgspec.MsgspecError as error:
        raise Corrupt(
            f"what a node answered to {action} can't be read: {error}",
            hint="Check that the client and the node are of versions that belong together.",
        ) from error


def check_looks(database: str, action: str, body: bytes) -> None:
    """Refuse an action that would change something."""
    if not only_looks(action, body):
        raise ReadOnly(database, f"the action {action}")
