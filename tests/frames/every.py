"""A table with a column of every type, and a row of it."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from decimal import Decimal
from typing import Any

EVERY = {
    "id": "int64",
    "flag": "bool",
    "tiny": "int8",
    "small": "int16",
    "whole": "int32",
    "single": "float32",
    "double": "float64",
    "text": "string",
    "data": "binary",
    "number": "decimal(20,3)",
    "day": "date",
    "moment": "timestamp",
    "local": "timestamp_ntz",
    "uid": "uuid",
    "tags": "list<string>",
    "counts": "map<string,int64>",
    "place": "struct<street:string,number:int32>",
}
ROW: dict[str, Any] = {
    "id": 1,
    "flag": True,
    "tiny": -128,
    "small": 32_767,
    "whole": -5,
    "single": 0.5,
    "double": math.pi,
    "text": "ä",
    "data": b"\x00\xff",
    "number": Decimal("12345678901234567.891"),
    "day": dt.date(1969, 12, 31),
    "moment": dt.datetime(2026, 1, 31, 12, 0, 0, 123_456, tzinfo=dt.UTC),
    "local": dt.datetime.fromisoformat("2026-01-31T12:00:00.123456"),
    "uid": uuid.UUID(int=7),
    "tags": ["a", None],
    "counts": {"x": 1},
    "place": {"street": "s", "number": 3},
}
