"""The log against a plain model: anything, in any order, with crashes in between."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from log.life import GROUPS, LogLife

NAMES = st.sampled_from(GROUPS)
FEW = st.integers(1, 9)
SEEDS = st.integers(0, 1 << 20)


class LogMachine(RuleBasedStateMachine):
    """Every step of a log's life as a rule; the log agrees with the oracle after each."""

    def __init__(self) -> None:
        super().__init__()
        self.life = LogLife()

    @rule(name=NAMES, count=FEW, newer=st.booleans())
    def append(self, name: str, count: int, newer: bool) -> None:
        self.life.append(name, count, newer=newer)

    @rule(name=NAMES)
    def append_large(self, name: str) -> None:
        self.life.append_large(name)

    @rule(name=NAMES, back=st.integers(0, 12), count=FEW)
    def overwrite(self, name: str, back: int, count: int) -> None:
        self.life.overwrite(name, back, count)

    @rule(name=NAMES, data=st.binary(max_size=9))
    def put_meta(self, name: str, data: bytes) -> None:
        self.life.put_meta(name, data)

    @rule()
    def roll(self) -> None:
        self.life.world.log.roll()

    @rule(name=NAMES, back=st.integers(0, 20), seed=SEEDS, share=st.sampled_from([0, 0.1, 0.5, 1]))
    def snapshot(self, name: str, back: int, seed: int, share: float) -> None:
        self.life.snapshot(name, back, seed, share)

    @rule(name=NAMES)
    def compact(self, name: str) -> None:
        self.life.compact(name)

    @rule(name=NAMES, seed=SEEDS, ahead=st.integers(1, 30), back=FEW)
    def install(self, name: str, seed: int, ahead: int, back: int) -> None:
        self.life.install(name, seed, ahead, back)

    @rule(name=NAMES)
    def replace(self, name: str) -> None:
        self.life.replace(name)

    @rule(turns=st.integers(1, 30))
    def let_time_pass(self, turns: int) -> None:
        self.life.let_time_pass(turns)

    @rule()
    def settle(self) -> None:
        self.life.settle()

    @rule()
    def restart(self) -> None:
        self.life.restart()

    @rule(seed=SEEDS)
    def lose_power(self, seed: int) -> None:
        self.life.lose_power(seed)

    @rule()
    def kill_the_process(self) -> None:
        self.life.kill_the_process()

    @invariant()
    def agrees(self) -> None:
        self.life.check()


TestLogModel = LogMachine.TestCase
