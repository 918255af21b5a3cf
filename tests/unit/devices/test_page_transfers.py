"""How pages go to and from a card: whole beats, and few transfers."""

import numpy as np
import pytest

from memory_link import MemoryLink
from npuserve.core import PAGE_TOKENS
from npuserve.devices.otpu_pages import OtpuPages
from npuserve.models.registry import model_facts
from npuserve.program.dram import BEAT, DramLayout
from npuserve.program.geometry import Geometry
from tiny_checkpoint import tiny_config

LAYERS, HEADS = 2, 2


def card(head_dim: int, capacity: int) -> tuple[MemoryLink, DramLayout, OtpuPages]:
    facts = model_facts(tiny_config(head_dim=head_dim, num_hidden_layers=LAYERS, num_key_value_heads=HEADS))
    dram = DramLayout(Geometry(facts, capacity), num_slots=2, max_rows=8)
    link = MemoryLink(dram.size)
    return link, dram, OtpuPages(link, dram)


@pytest.mark.parametrize("head_dim", [32, 64, 80, 128])
def test_pages_are_written_in_whole_beats_and_inside_their_slot(head_dim: int) -> None:
    link, dram, pages = card(head_dim, 700)
    data = [np.random.default_rng(page).integers(0, 256, pages.page_bytes, np.uint8) for page in range(10)]
    pages.restore(1, 0, data)
    assert all(address % BEAT == size % BEAT == 0 for address, size in link.written)
    slot = dram.slots + dram.slot_stride
    assert all(slot <= address <= address + size <= slot + dram.slot_stride for address, size in link.written)
    for page, expected in enumerate(data):
        np.testing.assert_array_equal(pages.save(1, page), expected)


def test_what_belongs_to_other_pages_and_slots_stays() -> None:
    link, dram, pages = card(64, 512)
    link.dram[:] = np.random.default_rng(0).integers(0, 256, link.dram.size, np.uint8)
    others = [(slot, page) for slot in range(2) for page in range(512 // PAGE_TOKENS) if (slot, page) != (0, 3)]
    before = {place: pages.save(*place) for place in others}
    outside = np.delete(link.dram, slice(dram.slots, dram.slots + dram.slot_stride))
    pages.restore(0, 3, [np.zeros(pages.page_bytes, np.uint8)])
    for place in others:
        np.testing.assert_array_equal(pages.save(*place), before[place])
    np.testing.assert_array_equal(np.delete(link.dram, slice(dram.slots, dram.slots + dram.slot_stride)), outside)


def test_the_columns_of_a_layer_are_one_transfer_each_way() -> None:
    link, _, pages = card(64, 2048)
    pages.restore(0, 0, [np.zeros(pages.page_bytes, np.uint8)] * 4)
    keys, scales = LAYERS * HEADS * 4, LAYERS * HEADS * 2
    values = LAYERS
    assert len(link.written) == keys + scales + values
