"""`lowmark zone`: list, show, create, alter, rename, default, drop; and partitions that stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lowmark
from cli.shop import ORDERS, Shop


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path / "shop")
    return made.with_orders()


DEFAULT = {
    "zone": "default",
    "default": True,
    "replicas": 3,
    "partitions": 8,
    "node_filter": "",
    "scale_up_ms": 5_000,
    "scale_down_ms": 600_000,
}


# -- looking ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_zone_of_a_new_database_is_listed_and_shown(shop: Shop) -> None:
    assert shop.json("zone", "list") == [DEFAULT | {"tables": 1}]
    found = shop.json("zone", "show", "default")
    assert found == DEFAULT | {"id": found["id"], "tables": ["public.orders"], "warnings": []}
    for words in (("zone", "list"), ("zone", "show", "default")):
        said = shop.run(*words)
        for word in ("default", "all nodes", "5 seconds", "10 minutes"):
            assert word in said
        assert "warning" not in said
    assert "public.orders" in shop.run("zone", "show", "default")


def test_looking_at_zones_writes_nothing(shop: Shop) -> None:
    assert "10 minutes" in shop.run("zone", "list", "--read-only")
    assert "10 minutes" in shop.run("zone", "show", "default", "--read-only")


def test_zones_are_asked_for_by_name(shop: Shop) -> None:
    said = shop.refused("zone", "show", "nowhere")
    assert "there is no zone nowhere" in said
    assert "There are zones default" in said


def test_without_a_directory_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    nothing = Shop(tmp_path / "no")
    for words in (("zone", "list"), ("zone", "create", "near")):
        assert "lowmark table create" in nothing.refused(*words, code=2)
    assert not (tmp_path / "no").exists()


# -- changing -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_zone_is_created_with_times_as_people_write_them(shop: Shop) -> None:
    # when a zone is created with all that can be said of it
    said = shop.run(
        *("zone", "create", "near", "--replicas", "5", "--partitions", "16"),
        *("--node-filter", "rack='r1'", "--scale-up", "90s", "--scale-down", "1h"),
    )
    # then it says what it made, and that is what others see
    assert "is in force\n  created zone near (5 replicas, 16 partitions," in said
    assert shop.json("zone", "show", "near") == {
        "zone": "near",
        "default": False,
        "replicas": 5,
        "partitions": 16,
        "node_filter": "rack = r1",
        "scale_up_ms": 90_000,
        "scale_down_ms": 3_600_000,
        "id": shop.json("zone", "show", "near")["id"],
        "tables": [],
        "warnings": [],
    }
    assert [one["zone"] for one in shop.json("zone", "list")] == ["default", "near"]
    # and one more time it is refused, or fine if that is said
    assert "there is a zone near already" in shop.refused("zone", "create", "near")
    again = ("zone", "create", "near", "--if-not-exists")
    assert shop.run(*again).startswith("nothing to do: version ")


def test_what_is_left_out_has_its_default(shop: Shop) -> None:
    made = shop.json("zone", "create", "near")
    assert made["changes"] == ["created zone near (3 replicas, 8 partitions)"]
    near = shop.json("zone", "show", "near")
    assert {**DEFAULT, "zone": "near", "default": False}.items() <= near.items()


@pytest.mark.parametrize(
    ("words", "changed", "said"),
    [
        (("--scale-down", "never"), {"scale_down_ms": None}, "scale_down 10 minutes → never"),
        (("--scale-down", "Never "), {"scale_down_ms": None}, "scale_down 10 minutes → never"),
        (("--scale-down", "2 days"), {"scale_down_ms": 172_800_000}, "→ 2 days"),
        (("--scale-up", "0ms"), {"scale_up_ms": 0}, "scale_up 5 seconds → 0 ms"),
        (("--replicas", "5"), {"replicas": 5}, "replicas 3 → 5"),
        (("--partitions", "2"), {"partitions": 2}, "partitions 8 → 2"),
        (("--node-filter", "disk = ssd"), {"node_filter": "disk = ssd"}, "→ disk = ssd"),
    ],
)
def test_only_what_is_given_is_altered(
    shop: Shop, words: tuple[str, ...], changed: dict[str, object], said: str
) -> None:
    done = shop.json("zone", "alter", "default", *words)
    assert said in done["changes"][0]
    assert done["zone"] == "default"
    assert shop.json("zone", "list") == [DEFAULT | changed | {"tables": 1}]
    assert shop.run("zone", "alter", "default", *words).startswith("nothing to do")


@pytest.mark.slow
def test_a_time_that_never_comes_can_be_taken_back(shop: Shop) -> None:
    shop.run("zone", "alter", "default", "--scale-down", "never", "--node-filter", "a = b")
    assert "never" in shop.run("zone", "show", "default")
    assert "never" in shop.run("zone", "list")
    shop.run("zone", "alter", "default", "--scale-down", "10min", "--node-filter", "")
    assert shop.json("zone", "list") == [DEFAULT | {"tables": 1}]


def test_partitions_of_a_zone_are_for_new_tables_only(shop: Shop) -> None:
    shop.run("zone", "alter", "default", "--partitions", "3")
    shop.run("table", "create", "bills", "--columns", ORDERS)
    assert [(one["table"], one["partitions"]) for one in shop.json("table", "list")] == [
        ("bills", 3),
        ("orders", 1),
    ]


@pytest.mark.slow
def test_a_zone_is_renamed_made_the_default_and_dropped(shop: Shop) -> None:
    shop.run("zone", "create", "near", "--partitions", "2")
    assert "default → far" not in shop.run("zone", "rename", "near", "far")
    assert "default zone: default → far" in shop.run("zone", "default", "far")
    assert shop.run("zone", "default", "far").startswith("nothing to do")
    # a table that names no zone goes to the default, one that names one goes there
    shop.run("table", "create", "bills", "--columns", ORDERS)
    shop.run("table", "create", "old", "--columns", ORDERS, "--zone", "default")
    assert shop.json("zone", "show", "far")["tables"] == ["public.bills"]
    assert shop.json("table", "show", "old")["zone"] == "default"
    # a zone in use is not dropped
    assert "it is the default zone" in shop.refused("zone", "drop", "far")
    assert "it has tables" in shop.refused("zone", "drop", "default")
    shop.run("zone", "create", "empty")
    assert "dropped zone empty" in shop.run("zone", "drop", "empty")
    assert "there is no zone empty" in shop.refused("zone", "drop", "empty")
    assert shop.run("zone", "drop", "empty", "--if-exists").startswith("nothing to do")


@pytest.mark.slow
@pytest.mark.parametrize(("replicas", "word"), [("1", "one replica"), ("2", "two replicas")])
def test_a_zone_that_survives_no_loss_is_warned_of(shop: Shop, replicas: str, word: str) -> None:
    warning = f"warning: zone near has {word}"
    assert warning in shop.run("zone", "create", "near", "--replicas", replicas)
    assert warning in shop.run("zone", "show", "near")
    assert warning in shop.run("zone", "list")
    assert warning in shop.run("zone", "alter", "near", "--partitions", "9")
    [said] = shop.json("zone", "show", "near")["warnings"]
    assert word in said
    [said] = shop.json("zone", "alter", "near", "--partitions", "9")["warnings"]
    assert word in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("create", "1st"), "can't name a zone"),
        (("create", "near", "--scale-up", "soon"), "'soon' as scale_up"),
        (("create", "near", "--scale-up", "never"), "'never' as scale_up"),
        (("create", "near", "--scale-down", "-5s"), "or never"),
        (("create", "near", "--scale-down", "5"), "a number and a unit"),
        (("create", "near", "--node-filter", "rack >"), "rack >"),
        (("create", "near", "--replicas", "99"), "99 replicas"),
        (("alter", "default"), "no change is given"),
        (("alter", "default", "--scale-down", "when hell freezes over"), "freezes"),
        (("rename", "default", "a.b"), "can't name a zone"),
    ],
)
def test_what_is_wrong_on_its_face_is_wrong_use(
    shop: Shop, words: tuple[str, ...], said: str
) -> None:
    assert said in shop.refused("zone", *words, code=2)
    assert shop.json("zone", "list") == [DEFAULT | {"tables": 1}]


# -- the number of partitions -------------------------------------------------------------------


@pytest.mark.slow
def test_another_number_of_partitions_is_refused_with_what_to_do_instead(shop: Shop) -> None:
    for words in (("--partitions", "16"), ("--partitions", "16", "--add", "note string")):
        said = shop.refused("table", "alter", "orders", *words)
        assert "table orders can't get 16 partitions: it was created with 1" in said
        assert "the bucket of its key" in said
        assert "Create a table with 16 partitions and copy the rows" in said
    assert len(shop.json("table", "show", "orders")["columns"]) == 3
    done = shop.invoke("table", "alter", "orders", "--partitions", "16", "--json")
    assert json.loads(done.stderr)["kind"] == "PartitionsFixed"
    assert "can't get 16" in shop.refused(
        "table", "alter", "orders", "--set", "partitions=16", code=2
    )
    assert "no table other" in shop.refused("table", "alter", "other", "--partitions", "16")
    # the number that it has is fine
    assert shop.run("table", "alter", "orders", "--partitions", "1").startswith("nothing to do")


def test_the_catalog_shows_times_of_zones(shop: Shop) -> None:
    shop.run("zone", "alter", "default", "--scale-down", "never")
    said = shop.run("catalog", "show")
    assert "scale down" in said
    assert "never" in said
    [zone] = shop.json("catalog", "show")["zones"]
    assert (zone["scale_up_ms"], zone["scale_down_ms"]) == (5_000, None)
    with lowmark.open(shop.data) as db:
        assert db.zone("default").scale_down_ms is None
