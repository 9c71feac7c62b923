from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from lowmark.errors import Rejected
from lowmark.node.settings import load_section


@dataclass(frozen=True, slots=True, kw_only=True)
class Pump:
    """A section such as a room would give."""

    tank_bytes_max: int = 4096
    speed: float = 1.0
    label: str = "main"
    lights: bool = False
    low: int = 1
    high: int = 9

    def __post_init__(self) -> None:
        if self.tank_bytes_max < 16:
            raise Rejected("tank_bytes_max is too small", hint="Use 16 or more.")
        if self.low > self.high:
            raise Rejected("low is above high")


def load(
    *,
    arguments: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Mapping[str, object] | None = None,
) -> Pump:
    return load_section(
        Pump,
        "pump",
        arguments=arguments or {},
        environment=environment or {},
        file=file or {},
        file_name="pump.toml",
    )


def test_nothing_said_means_the_defaults() -> None:
    assert load() == Pump()


def test_what_was_said_closest_to_the_command_wins() -> None:
    # given one setting in all three places, one in two, one in the file only
    section = load(
        file={"label": "file", "speed": 2.0, "low": 2},
        environment={"PATH": "elsewhere", "LOWMARK_PUMP_LABEL": "env", "LOWMARK_PUMP_SPEED": "3"},
        arguments={"label": "argument"},
    )
    # then arguments beat the environment, which beats the file, which beats the default
    assert section == Pump(label="argument", speed=3.0, low=2)


def test_every_type_of_setting_comes_from_the_environment_too() -> None:
    section = load(
        environment={
            "LOWMARK_PUMP_TANK_BYTES_MAX": "1MiB",
            "LOWMARK_PUMP_SPEED": "0.5",
            "LOWMARK_PUMP_LIGHTS": "true",
            "LOWMARK_PUMP_HIGH": "12",
        }
    )
    assert section == Pump(tank_bytes_max=1_048_576, speed=0.5, lights=True, high=12)


def test_a_variable_of_another_section_is_none_of_our_business() -> None:
    assert load(environment={"LOWMARK_PUMPING_SPEED": "3"}) == Pump()


def test_a_name_nobody_knows_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(Rejected) as in_file:
        load(file={"tank_bytes": 1})
    with pytest.raises(Rejected) as in_environment:
        load(environment={"LOWMARK_PUMP_SPED": "1"})
    assert in_file.value.message == "pump.tank_bytes in pump.toml: there is no such setting"
    assert in_file.value.hint == "Did you mean pump.tank_bytes_max?"
    assert in_environment.value.message.startswith("LOWMARK_PUMP_SPED in the environment:")
    assert in_environment.value.hint == "Did you mean LOWMARK_PUMP_SPEED?"


def test_a_wrong_type_names_the_key_the_place_and_what_is_allowed() -> None:
    with pytest.raises(Rejected) as in_file:
        load(file={"speed": "fast"})
    with pytest.raises(Rejected) as in_environment:
        load(environment={"LOWMARK_PUMP_LIGHTS": "maybe"})
    assert in_file.value.message == "pump.speed in pump.toml: 'fast' is not a number"
    assert in_environment.value.message == (
        "LOWMARK_PUMP_LIGHTS in the environment: 'maybe' is not true or false"
    )


def test_a_value_out_of_range_is_traced_to_where_it_was_written() -> None:
    with pytest.raises(Rejected) as refused:
        load(file={"speed": 2.0}, environment={"LOWMARK_PUMP_TANK_BYTES_MAX": "3"})
    assert refused.value.message == (
        "LOWMARK_PUMP_TANK_BYTES_MAX in the environment: tank_bytes_max is too small"
    )
    assert refused.value.hint == "Use 16 or more."


def test_values_that_do_not_go_together_are_all_named() -> None:
    # given two values, each fine with the other's default, that contradict each other
    with pytest.raises(Rejected) as refused:
        load(file={"low": 8}, environment={"LOWMARK_PUMP_HIGH": "7"})
    assert refused.value.message == (
        "pump.low in pump.toml, LOWMARK_PUMP_HIGH in the environment: low is above high"
    )


def test_a_wrong_line_is_refused_even_where_it_is_overridden() -> None:
    with pytest.raises(Rejected, match=r"pump\.speed in pump\.toml"):
        load(file={"speed": "fast"}, environment={"LOWMARK_PUMP_SPEED": "1"})
