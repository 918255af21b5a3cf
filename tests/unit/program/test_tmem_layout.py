from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuserve.errors import ProgramError
from npuserve.isa.machine import BOARD, WIDE, MachineConfig
from npuserve.models.facts import ModelFacts
from npuserve.models.registry import model_facts
from npuserve.program.dram import LayerLayout
from npuserve.program.geometry import ATTENTION_BLOCK, Geometry
from npuserve.program.tmem import Shape, TmemLayout, most_rows
from random_models import models
from regions import Region, assert_disjoint
from tiny_checkpoint import tiny_config


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    prefill = draw(st.integers(0, 64))
    decode = draw(st.integers(0 if prefill else 1, 64 - prefill if prefill < 64 else 0))
    return Shape(prefill, decode, draw(st.integers(0, prefill + decode)))


def row_regions(tmem: TmemLayout) -> list[Region]:
    geometry, facts = tmem.geometry, tmem.geometry.facts
    regions = [
        Region("hidden", tmem.hidden, geometry.hidden),
        Region("cosines", tmem.cosines, facts.head_dim),
        Region("sines", tmem.sines, facts.head_dim),
        Region("mask", tmem.mask, tmem.shape.mask_blocks * ATTENTION_BLOCK),
        Region("qkv, gate and up", tmem.qkv, max(geometry.qkv, 2 * facts.intermediate_size)),
        Region("q and k heads", tmem.qk_heads, geometry.num_qk_heads * geometry.head),
        Region("v heads", tmem.v_heads, facts.num_kv_heads * geometry.head),
        Region("attention", tmem.attention, geometry.attention),
    ]
    if tmem.mlp != tmem.gate_up:
        regions.append(Region("mlp", tmem.mlp, geometry.mlp))
    return regions


def whole_regions(tmem: TmemLayout) -> list[Region]:
    facts, shape = tmem.geometry.facts, tmem.shape
    tile = facts.num_heads if shape.decode_rows else 0
    tile = max(tile, shape.prefill_rows)
    return [
        Region("segments", tmem.segments, shape.segments * 16),
        Region("vectors", tmem.vectors, LayerLayout(tmem.geometry).vectors.size),
        Region("statistics", tmem.statistics, shape.rows * (facts.num_heads + facts.num_kv_heads)),
        Region("softmax", tmem.softmax, 4 * tmem.softmax_stride + tile),
        Region("accumulator", tmem.accumulator, tile * facts.head_dim),
        Region("value scales", tmem.value_scales, facts.num_kv_heads * ATTENTION_BLOCK),
        Region("scores", tmem.scores, tile * ATTENTION_BLOCK),
        Region("rows", tmem.rows, shape.rows * tmem.row_stride),
    ]


@given(models(), shapes(), st.sampled_from([BOARD, WIDE]))
def test_no_two_things_share_a_word(facts: ModelFacts, shape: Shape, machine: MachineConfig) -> None:
    try:
        tmem = TmemLayout(Geometry(facts, 512), shape, machine)
    except ProgramError:
        return
    assert_disjoint(whole_regions(tmem), machine.tmem_words)
    assert_disjoint(row_regions(tmem), tmem.row_stride)
    assert tmem.activation_rows * facts.intermediate_size <= tmem.rows - tmem.scores
    assert tmem.logits + shape.logit_rows * tmem.logits_chunk <= machine.tmem_words
    assert tmem.logits_chunk > 0 or not shape.logit_rows
    assert tmem.row_stride < 1 << 16


@given(models(), st.sampled_from([BOARD, WIDE, replace(WIDE, name="narrow", tmem_words=150_000)]), st.data())
def test_every_step_of_the_most_rows_fits(facts: ModelFacts, machine: MachineConfig, data: st.DataObject) -> None:
    geometry = Geometry(facts, 512)
    try:
        limit = most_rows(geometry, machine)
    except ProgramError:
        return
    assert limit <= machine.act_rows
    prefill = data.draw(st.integers(0, limit))
    decode = data.draw(st.integers(0 if prefill else 1, limit - prefill if prefill < limit else 0))
    TmemLayout(geometry, Shape(prefill, decode, prefill + decode), machine)


def test_a_mixed_step_fits_where_only_pure_ones_did_not_leave_room_for_its_segments() -> None:
    """Of four rows, 2 + 2 need three segments' words, more than 3 + 1 and 4 + 0."""
    geometry = Geometry(
        model_facts(
            tiny_config(
                intermediate_size=3584, hidden_size=768, num_attention_heads=12, num_key_value_heads=4, head_dim=64
            )
        ),
        512,
    )
    limit = most_rows(geometry, BOARD)
    for prefill in range(limit + 1):
        TmemLayout(geometry, Shape(prefill, limit - prefill, limit), BOARD)


def test_a_shape_that_does_not_fit_is_refused_with_both_sizes() -> None:
    geometry = Geometry(model_facts(tiny_config(intermediate_size=16_000)), 512)
    with pytest.raises(ProgramError, match=r"4 rows need \d+ words, but TMEM of board has 65536"):
        TmemLayout(geometry, Shape(3, 1, 4), BOARD)
    with pytest.raises(ProgramError, match=r"a row needs \d+ words, but strides hold 65535"):
        TmemLayout(Geometry(model_facts(tiny_config(intermediate_size=40_000)), 512), Shape(0, 1, 1), WIDE)


def test_a_model_too_large_for_one_row_is_refused() -> None:
    geometry = Geometry(model_facts(tiny_config(intermediate_size=16_000, hidden_size=30_000)), 512)
    with pytest.raises(ProgramError, match="1 rows need"):
        most_rows(geometry, BOARD)


def test_the_small_board_has_four_rows_for_a_model_of_a_billion_weights() -> None:
    sizes: dict[str, Any] = {
        "hidden_size": 2048,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
    }
    assert most_rows(Geometry(model_facts(tiny_config(head_dim=64, **sizes)), 2048), BOARD) >= 2


def test_a_projection_wider_than_the_activation_memory_is_refused() -> None:
    geometry = Geometry(model_facts(tiny_config(intermediate_size=17_000)), 512)
    with pytest.raises(ProgramError, match="a projection reads 133 blocks of 128, but ACT rows of wide have 128"):
        TmemLayout(geometry, Shape(0, 1, 1), WIDE)
