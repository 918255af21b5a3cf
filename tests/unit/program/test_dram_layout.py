import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuserve.errors import ProgramError
from npuserve.models.facts import ModelFacts
from npuserve.models.registry import model_facts
from npuserve.program.dram import BEAT, PAGE, DramLayout, Matrix
from npuserve.program.geometry import BLOCK, Geometry
from random_models import models
from regions import Region, assert_disjoint
from tiny_checkpoint import tiny_config

LAYOUTS = st.tuples(models(), st.integers(1, 3000), st.integers(1, 16), st.sampled_from([1, 4, 64]))


def layout(facts: ModelFacts, capacity: int, num_slots: int, max_rows: int) -> DramLayout:
    return DramLayout(Geometry(facts, capacity), num_slots, max_rows)


def matrix_regions(name: str, base: int, matrix: Matrix) -> list[Region]:
    return [
        Region(f"{name} weights", base + matrix.weights, matrix.n * matrix.row_stride),
        Region(f"{name} scales", base + matrix.scales, matrix.n * matrix.scale_stride),
    ]


def layer_regions(dram: DramLayout, base: int) -> list[Region]:
    layer = dram.layer
    regions = [Region("vectors", base, layer.vectors.size * 4)]
    for name in ("qkv", "o", "gate_up", "down"):
        regions += matrix_regions(name, base, getattr(layer, name))
    return regions


def kv_regions(dram: DramLayout, base: int) -> list[Region]:
    kv, geometry = dram.kv, dram.geometry
    regions = []
    for head in range(geometry.facts.num_kv_heads):
        regions += [
            Region(f"K {head}", base + head * kv.k_head, geometry.positions * kv.k_row),
            Region(
                f"K scales {head}", base + kv.k_scales + head * kv.k_scale_head, geometry.positions * kv.k_scale_row
            ),
            Region(f"V scales {head}", base + kv.v_scales + head * kv.v_scale_head, geometry.positions * 4),
            Region(
                f"V {head}",
                base + kv.values + head * kv.v_head,
                geometry.value_rows * geometry.v_row_stride_bytes,
            ),
        ]
    return regions


def all_regions(dram: DramLayout) -> list[Region]:
    """Layers and slots each as one; their insides are checked for the first and the last."""
    facts = dram.geometry.facts
    layers = [Region(f"layer {n}", n * dram.layer.stride, dram.layer.stride) for n in range(facts.num_layers)]
    slots = [Region(f"slot {n}", dram.slots + n * dram.slot_stride, dram.slot_stride) for n in range(dram.num_slots)]
    return [
        *layers,
        Region("final norm", dram.final_norm, dram.geometry.hidden * 4),
        *matrix_regions("head", 0, dram.head),
        Region("row records", dram.rows, dram.max_rows * dram.row_record_words * 4),
        Region("segments", dram.segments, facts.num_layers * dram.max_rows * 16 * 4),
        Region("logits", dram.logits, dram.max_rows * facts.vocab_size * 4),
        *slots,
        Region("program", dram.programs, 65_536 * 32),
    ]


@given(LAYOUTS)
def test_no_two_things_share_an_address(arguments: tuple[ModelFacts, int, int, int]) -> None:
    try:
        dram = layout(*arguments)
    except ProgramError:
        return
    assert_disjoint(all_regions(dram), dram.size)
    assert_disjoint(layer_regions(dram, 0), dram.layer.stride)
    assert_disjoint(kv_regions(dram, 0), dram.kv.stride)
    assert dram.kv.stride * dram.geometry.facts.num_layers <= dram.slot_stride
    assert dram.head.end <= dram.image_bytes <= dram.rows


@given(LAYOUTS)
def test_addresses_are_as_aligned_as_the_instructions_and_the_link_want_them(
    arguments: tuple[ModelFacts, int, int, int],
) -> None:
    try:
        dram = layout(*arguments)
    except ProgramError:
        return
    layer, kv = dram.layer, dram.kv
    streamed = [layer.qkv, layer.o, layer.gate_up, layer.down, dram.head]
    starts = [matrix.weights for matrix in streamed] + [layer.stride, kv.k_head, kv.values, kv.v_head, kv.stride]
    strides = [matrix.row_stride for matrix in streamed] + [kv.k_row, dram.geometry.v_row_stride_bytes]
    for value in starts + strides:
        assert value % BLOCK == 0
    for word in (kv.k_scales, kv.v_scales, kv.k_scale_head, kv.v_scale_head, dram.final_norm):
        assert word % 4 == 0
    for written in (dram.rows, dram.segments, dram.programs):
        assert written % BEAT == 0
    for page in (dram.image_bytes, dram.slots, dram.slot_stride):
        assert page % PAGE == 0
    assert dram.programs % BLOCK == 0


@given(LAYOUTS)
def test_only_what_the_card_can_address_is_laid_out(arguments: tuple[ModelFacts, int, int, int]) -> None:
    facts, capacity, num_slots, max_rows = arguments
    try:
        assert layout(facts, capacity, num_slots, max_rows).size <= 1 << 32
    except ProgramError:
        weights = facts.num_layers * facts.hidden_size * (3 * facts.intermediate_size + 2 * facts.num_heads)
        assert weights + num_slots * capacity * facts.num_layers * facts.num_kv_heads * 128 > 1 << 28


def test_too_many_slots_are_refused_with_the_size_and_the_remedy() -> None:
    facts = model_facts(tiny_config(num_hidden_layers=32, num_key_value_heads=6, head_dim=128))
    layout(facts, 2048, 8, 64)
    with pytest.raises(
        ProgramError, match=r"64 slots of 8192 tokens need 2\d\.\d\d GiB.*fewer --slots, a smaller --cap or a --wformat"
    ):
        layout(facts, 8192, 64, 64)


def test_slots_have_room_for_whole_attention_blocks() -> None:
    facts = model_facts(tiny_config())
    assert [Geometry(facts, capacity).positions for capacity in (1, 256, 257, 1000)] == [256, 256, 512, 1024]
