from typing import Any

import pytest

from full_size_models import FULL_SIZE_MODELS
from npuserve.checkpoints.catalog import catalog
from npuserve.errors import ProgramError
from npuserve.isa.machine import WIDE
from npuserve.models.registry import model_facts
from npuserve.models.weight_formats import format_plan, with_formats
from npuserve.program.decoder import build
from npuserve.program.dram import ADDRESS_SPACE, DramLayout
from npuserve.program.fitted_layout import fitted_layout, shortfall
from npuserve.program.geometry import Geometry
from npuserve.program.tmem import Shape, most_rows
from tiny_checkpoint import tiny_config

DEFAULT_SLOTS, DEFAULT_CONTEXT = 8, 2048
CARD_GIB = ADDRESS_SPACE >> 30


def geometry(capacity: int, **changes: Any) -> Geometry:
    """A model whose slots need 0.4 GiB at 8192 tokens, beside little weight."""
    return Geometry(
        model_facts(tiny_config(num_hidden_layers=32, num_key_value_heads=6, head_dim=128, **changes)), capacity
    )


def served(name: str, wformat: str = "auto") -> DramLayout:
    """A short name's layout with the command's defaults."""
    facts = with_formats(model_facts(FULL_SIZE_MODELS[name]), format_plan(wformat, None, catalog()[name].mix))
    whole = Geometry(facts, min(DEFAULT_CONTEXT, facts.context_length))
    return fitted_layout(whole, 1 if facts.has_state else DEFAULT_SLOTS, most_rows(whole, WIDE))


def test_what_fits_is_laid_out_as_asked() -> None:
    dram = fitted_layout(geometry(2048), 8, 64)
    assert (dram.num_slots, dram.geometry.capacity, dram.max_rows) == (8, 2048, 64)
    assert shortfall(dram, 8, 2048) is None


def test_slots_are_as_many_as_fit() -> None:
    dram = fitted_layout(geometry(8192), 64, 64)
    assert 1 < dram.num_slots < 64
    assert dram.geometry.capacity == 8192
    with pytest.raises(ProgramError):
        DramLayout(geometry(8192), dram.num_slots + 1, 64)
    line = shortfall(dram, 64, 8192)
    assert line is not None
    assert line.startswith("there is no room for 64 slots of 8192 tokens in the card's 4 GiB beside 0.0")
    assert line.endswith(f"serving {dram.num_slots} slots of 8192")


def test_a_context_too_long_for_one_slot_is_cut_to_whole_blocks() -> None:
    dram = fitted_layout(geometry(1 << 20), 8, 64)
    assert dram.num_slots == 1
    capacity = dram.geometry.capacity
    assert capacity % 256 == 0
    with pytest.raises(ProgramError):
        DramLayout(geometry(capacity + 256), 1, 64)
    line = shortfall(dram, 8, 1 << 20)
    assert line is not None
    assert line.endswith(f"serving 1 slot of {capacity}")


def test_weights_that_leave_no_room_are_refused_with_the_remedy() -> None:
    with pytest.raises(
        ProgramError, match=r"4\.\d\d GiB of weights and 1 slot of 256 tokens.*--wformat with fewer bits"
    ):
        served("qwen35-4b", "int8")


@pytest.mark.parametrize("name", FULL_SIZE_MODELS)
def test_every_dense_short_name_fits_the_card_with_the_catalogs_formats(name: str) -> None:
    dram = served(name)
    assert dram.size <= ADDRESS_SPACE
    assert dram.geometry.capacity == DEFAULT_CONTEXT
    most = {"gemma4-e4b": 2}.get(name, DEFAULT_SLOTS)
    assert dram.num_slots == (1 if dram.geometry.facts.has_state else most)


@pytest.mark.parametrize("name", FULL_SIZE_MODELS)
def test_programs_of_every_dense_short_name_fit_the_machine(name: str) -> None:
    dram = served(name)
    rows = dram.max_rows
    for shape in (Shape(0, 1, 1), Shape(rows, 0, 1), Shape(0, min(rows, dram.num_slots), min(rows, dram.num_slots))):
        program = build(dram, shape, WIDE)
        assert len(program) <= WIDE.imem_instructions
        assert program.nbytes <= dram.size - dram.programs
