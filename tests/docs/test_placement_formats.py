"""The page on placement and the low watermark has every field, and its examples are real."""

from __future__ import annotations

import re
from dataclasses import fields
from textwrap import dedent

import msgspec
import pytest

from docs.pages import FORMATS, blocks, tables
from lowmark.errors import Rejected
from lowmark.metastore import ClusterSettings
from lowmark.node import Settings, load_settings
from lowmark.node.settings import WatermarkSettings
from lowmark.placement import decisions
from lowmark.placement.assignments import (
    ASSIGNMENTS_PREFIX,
    KINDS,
    METASTORE,
    PENDING,
    Assignments,
    decode_assignments,
    parse_key,
    stable_key,
)
from lowmark.placement.baseline import (
    DRAINING_PREFIX,
    Baseline,
    BaselineNode,
    Draining,
    baseline_key,
    draining_key,
)
from lowmark.placement.operations import REBALANCE_KEY, RebalanceValue
from lowmark.placement.waiting import WAITING_KEY, WaitedFor, WaitingValue
from lowmark.table.watermark import (
    HISTORY_KEY,
    HOLD_PREFIX,
    HOLDS_KEY,
    WATERMARK_KEY,
    HistoryValue,
    HoldValue,
    WatermarkValue,
    hold_key,
)

PAGE = "placement.md"
STRUCTS: dict[str, type[msgspec.Struct]] = {
    "Assignments": Assignments,
    "Baseline": Baseline,
    "BaselineNode": BaselineNode,
    "Draining": Draining,
    "WaitingValue": WaitingValue,
    "WaitedFor": WaitedFor,
    "RebalanceValue": RebalanceValue,
    "WatermarkValue": WatermarkValue,
    "HoldValue": HoldValue,
    "HistoryValue": HistoryValue,
}
_TIME = 1_735_652_600_000 << 16
EXAMPLES: dict[bytes, msgspec.Struct] = {
    stable_key(12, 0): Assignments((1, 2, 3), 7),
    METASTORE.key(PENDING): Assignments((1, 2, 3), 0, (4,)),
    baseline_key(2): Baseline(
        nodes=(BaselineNode(1, "r1"), BaselineNode(2)),
        replicas=3,
        catalog_version=7,
        chosen=(1, 2),
    ),
    draining_key(3): Draining(1_735_652_600_000),
    WAITING_KEY: WaitingValue({4: WaitedFor(up=False, revision=57, ms=35_000)}),
    REBALANCE_KEY: RebalanceValue(bytes_per_s=50 << 20),
    WATERMARK_KEY: WatermarkValue(_TIME, _TIME + (600_000 << 16)),
    hold_key(2): HoldValue(_TIME, _TIME + (600_000 << 16), "table orders is read as of then"),
    HISTORY_KEY: HistoryValue(86_400_000),
}


def test_the_page_has_every_field_in_order() -> None:
    said = {
        table.heading: tuple(row[0].strip("`") for row in table.rows)
        for table in tables(PAGE)
        if table.columns[0] == "field"
    }
    assert said == {name: of.__struct_fields__ for name, of in STRUCTS.items()}


def test_the_page_has_every_key() -> None:
    [keys] = [table for table in tables(PAGE) if table.columns[0] == "key"]
    assert [row[0].strip("`") for row in keys.rows] == [
        *(f"{ASSIGNMENTS_PREFIX.decode()}{kind}.<table>.<partition>" for kind in KINDS),
        "zone.<zone>.baseline",
        f"{DRAINING_PREFIX.decode()}<node>",
        WAITING_KEY.decode(),
        REBALANCE_KEY.decode(),
        WATERMARK_KEY.decode(),
        f"{HOLD_PREFIX.decode()}<node>",
        HOLDS_KEY.decode(),
        HISTORY_KEY.decode(),
    ]
    assert KINDS == ("stable", "pending", "planned", "change.trigger.revision", "pending.lock")


@pytest.mark.parametrize("key", EXAMPLES)
def test_the_shown_values_are_what_is_written_and_read(key: bytes) -> None:
    [block] = [one for one in blocks(PAGE) if one.info == f"the value of {key.decode()}"]
    shown = block.text.strip().encode()
    value = EXAMPLES[key]
    assert shown == msgspec.json.encode(value)
    assert msgspec.json.decode(shown, type=type(value)) == value


def test_the_page_has_the_decision_table_of_the_code() -> None:
    [block] = [one for one in blocks(PAGE) if one.info == "the decision table"]
    text = decisions.__doc__ or ""
    table = text[text.index("    happens ") : text.index("Without a stable set")]
    assert block.text.strip() == dedent(table).strip()


def test_the_shown_assignments_are_those_of_a_partition() -> None:
    assert parse_key(stable_key(12, 0)) == ("stable", 12, 0)
    value = EXAMPLES[stable_key(12, 0)]
    assert isinstance(value, Assignments)
    assert decode_assignments(value.encode()) == value


def test_the_guide_lists_every_setting_of_the_low_watermark_with_its_default() -> None:
    # given what the guide says
    guide = (FORMATS.parent / "guide" / "operate.md").read_text()
    after = guide.split("\n### Settings of the low watermark\n")[1]
    section = re.split(r"^#", after, flags=re.MULTILINE)[0]
    said = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", section, re.MULTILINE))
    assert list(said) == [field.name for field in fields(WatermarkSettings)]
    # when all of it is set to that
    given = {f"LOWMARK_WATERMARK_{name.upper()}": default for name, default in said.items()}
    settings = load_settings(environment=given)
    # then nothing changes, and a cluster is founded with it
    assert settings.watermark == WatermarkSettings()
    founded = settings.for_founding()
    assert founded == Settings().for_founding() == ClusterSettings(id="")


@pytest.mark.parametrize(("name", "value"), [("AVAILABILITY_MS", "-1"), ("INTERVAL_MS", "9")])
def test_a_setting_of_the_low_watermark_that_makes_no_sense_is_refused(
    name: str, value: str
) -> None:
    with pytest.raises(Rejected) as refused:
        load_settings(environment={f"LOWMARK_WATERMARK_{name}": value})
    assert f"LOWMARK_WATERMARK_{name}" in refused.value.message
    with pytest.raises(ValueError):
        ClusterSettings(id="", **{f"watermark_{name.lower()}": int(value)})  # type: ignore[arg-type]
