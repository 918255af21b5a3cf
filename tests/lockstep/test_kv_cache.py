"""MM over a KV cache that grows by QST between its uses, as rows (K) and as columns (V transposed)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from lockstep.fleet import Fleet, Memory, assert_lockstep, native_fleet
from lockstep.random_words import random_words
from npuserve.isa.fields import Address, Value
from npuserve.isa.machine import MachineConfig
from npuserve.isa.spec import encode
from npuserve.sim.native import NativeMachine, available
from small_machine import Words

pytestmark = pytest.mark.skipif(not available(), reason="the native core is not built")

DRAM_BYTES = 1 << 19
CAPACITY = 96
SIZES: dict[str, Any] = {"mcols": 8, "act_rows": 8, "act_blocks": 16, "tmem_words": 1 << 15, "dram_bytes": DRAM_BYTES}
CONFIGS = [MachineConfig("cache32", depth=32, **SIZES), MachineConfig("cache128", depth=128, **SIZES)]
KEYS, VALUES, KEY_SCALES, VALUE_SCALES = 0, 0x20000, 0x40000, 0x48000
OUT = 8192
NUM_STEPS = 60


@pytest.fixture(scope="module", params=CONFIGS, ids=lambda config: config.name)
def fleet(request: pytest.FixtureRequest) -> Fleet:
    return native_fleet(request.param, DRAM_BYTES, shadow_bytes=(None, 0))


@dataclass(slots=True)
class Cache:
    """Draws instructions on `CAPACITY` tokens of `kb` blocks; K is [tokens, kb*D], V^T is [values, capacity]."""

    rng: np.random.Generator
    depth: int
    kb: int
    values: int
    length: int = 0

    def number(self, low: int, high: int) -> int:
        """low..high, both included."""
        return int(self.rng.integers(low, high + 1))

    @property
    def value_stride(self) -> int:
        return -(-CAPACITY // self.depth) * self.depth

    def append_keys(self, count: int) -> list[int]:
        width = self.kb * self.depth
        place: dict[str, Value] = {"dst": KEYS + self.length * width, "sdst": KEY_SCALES + 4 * self.kb * self.length}
        return encode("QST", **place, src=self.number(0, 999), rows=count, kb=self.kb, srs=width, drs=width, es=1)

    def append_values(self, count: int) -> list[int]:
        """`count` tokens as columns side by side; with HALF where the values are half of the blocks."""
        blocks = -(-self.values // self.depth)
        half = int(self.values * 2 == blocks * 2 * self.depth and self.number(0, 1))
        place: dict[str, Value] = {"dst": VALUES + self.length, "sdst": VALUE_SCALES + 0x4000 + 4 * self.length}
        shape: dict[str, Value] = {"rows": count, "kb": 2 * blocks if half else blocks, "half": half, "row_scale": 1}
        strides: dict[str, Value] = {"srs": 2 * blocks * self.depth, "drs": 1, "es": self.value_stride}
        return encode("QST", **place, **shape, **strides, src=self.number(0, 999))

    def use_keys(self) -> list[int]:
        width = self.kb * self.depth
        n = self.rng.choice([max(self.length, 1), CAPACITY, max(1, self.length // 16 * 16), self.number(1, CAPACITY)])
        first = int(self.rng.choice([0, 0, 0, 16, self.number(0, CAPACITY - 1)]))
        n = max(1, min(int(n), CAPACITY - first))
        block = self.number(0, self.kb - 1) if self.number(0, 4) == 0 else 0
        place: dict[str, Value] = {"sa": KEYS + first * width + block * self.depth, "rs": width, "kb": self.kb - block}
        scales: dict[str, Value] = {"ssa": KEY_SCALES + 4 * (first * self.kb + block), "srs": 4 * self.kb}
        return self.mm(place | scales, n)

    def use_values(self) -> list[int]:
        blocks = self.value_stride // self.depth
        first = self.number(0, blocks - 1)
        kb = int(self.rng.choice([-(-max(self.length, 1) // self.depth), blocks, 1]))
        kb = max(1, min(kb, blocks - first))
        place: dict[str, Value] = {"sa": VALUES + first * self.depth, "rs": self.value_stride, "kb": kb}
        scales: dict[str, Value] = {"ssa": VALUE_SCALES + 4 * first, "srs": 4 * blocks}
        return self.mm(place | scales | {"unit": self.number(0, 1)}, self.values)

    def mm(self, operands: dict[str, Value], n: int) -> list[int]:
        m = int(self.rng.choice([1, 2, 8]))
        return encode("MM", **operands, n=n, m=m, out=OUT + self.number(0, 3) * 1024, ors=n, acc=self.number(0, 1))

    def disturb(self) -> list[int]:
        """A store somewhere into the cache or its scales."""
        base = int(self.rng.choice([KEYS, VALUES, KEY_SCALES, VALUE_SCALES]))
        place = base + 4 * self.number(0, self.length * self.kb * self.depth // 4 + 8)
        return encode("ST", dst=place, src=self.number(0, 999), count=self.number(1, 40))

    def step(self) -> list[list[int]]:
        kind = self.number(0, 9)
        if kind <= 2 and self.length < CAPACITY:
            count = min(int(self.rng.choice([1, 1, 1, 3, 17])), CAPACITY - self.length)
            written = [self.append_keys(count), self.append_values(count)]
            self.length += count
            return [*written, self.use_keys(), self.use_values()]
        if kind == 3:
            return [self.disturb()]
        if kind == 4:
            self.length = self.number(0, self.length)
        use = self.use_keys() if self.number(0, 1) else self.use_values()
        return [encode("LOOP", body=1, count=Address(0, self.number(1, 3))), use]


def run_programs(fleet: Fleet, seed: int) -> None:
    """Several programs on one cache, with writes of the host between them."""
    rng = np.random.default_rng(seed)
    depth = fleet.config.depth
    cache = Cache(rng, depth, kb=int(rng.integers(1, 4)), values=int(rng.choice([depth // 2, depth, 33, 2 * depth])))
    dram = rng.integers(0, 256, DRAM_BYTES, np.uint8)
    dram[KEYS:KEY_SCALES] = 0 if rng.random() < 0.5 else dram[KEYS:KEY_SCALES]
    dram[KEY_SCALES:] = random_words(rng, (DRAM_BYTES - KEY_SCALES) // 4, 0.0).view(np.uint8)
    memory = Memory({0: dram}, random_words(rng, 1 << 15, 0.0), act(fleet, rng))
    for _ in range(5):
        program = [instruction for _ in range(NUM_STEPS // 5) for instruction in cache.step()]
        outcome = assert_lockstep(fleet, np.array([*program, encode("HALT")], np.uint32), memory=memory)
        assert outcome.fault_pc is None, outcome
        address = int(rng.choice([KEYS, VALUES, KEY_SCALES])) + 4 * int(rng.integers(0, 2000))
        memory = Memory({address: rng.integers(0, 60, 8, np.uint8)})
    natives = [machine for machine in fleet.machines.values() if isinstance(machine, NativeMachine)]
    assert any(machine.packed_bytes for machine in natives), "no packed copy was put to the test"


def act(fleet: Fleet, rng: np.random.Generator) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.int8]], Words]:
    config = fleet.config
    codes = rng.integers(-127, 128, (config.act_rows, config.act_blocks * config.depth), np.int8)
    return codes, random_words(rng, config.act_rows * config.act_blocks, 0.0).reshape(config.act_rows, -1)


@pytest.mark.parametrize("seed", range(12))
def test_appended_tokens_are_seen(fleet: Fleet, seed: int) -> None:
    run_programs(fleet, seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_appended_tokens_are_seen(fleet: Fleet, part: int) -> None:
    for seed in range(1000 + 50 * part, 1050 + 50 * part):
        run_programs(fleet, seed)
