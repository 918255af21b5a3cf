"""As much of what is asked for as card memory holds: fewer slots first, then a shorter context."""

from dataclasses import replace

from npuserve.errors import ProgramError
from npuserve.program.dram import ADDRESS_SPACE, DramLayout, slots_of
from npuserve.program.geometry import ATTENTION_BLOCK, Geometry

_GIB = 1 << 30


def fitted_layout(geometry: Geometry, num_slots: int, max_rows: int) -> DramLayout:
    """The layout with the most slots, at most `num_slots`, of the geometry's capacity.

    Where not even one fits, one slot of as many whole attention blocks as there is room for. Raises ProgramError when
    weights leave no room for one block.
    """
    try:
        one = DramLayout(geometry, 1, max_rows)
    except ProgramError:
        return _shorter_context(geometry, max_rows)
    more = (ADDRESS_SPACE - one.size) // one.slot_stride if one.slot_stride else num_slots
    return replace(one, num_slots=min(num_slots, 1 + more))


def _shorter_context(geometry: Geometry, max_rows: int) -> DramLayout:
    """By bisection: a layout grows with its context."""
    least, most = 1, (geometry.capacity - 1) // ATTENTION_BLOCK
    best = DramLayout(replace(geometry, capacity=min(ATTENTION_BLOCK, geometry.capacity)), 1, max_rows)
    while least < most:
        blocks = (least + most + 1) // 2
        try:
            best = DramLayout(replace(geometry, capacity=blocks * ATTENTION_BLOCK), 1, max_rows)
            least = blocks
        except ProgramError:
            most = blocks - 1
    return best


def shortfall(dram: DramLayout, num_slots: int, context_length: int) -> str | None:
    """One line on what a fitted layout lacks of what was asked for; None when nothing."""
    capacity = dram.geometry.capacity
    if dram.num_slots >= num_slots and capacity >= context_length:
        return None
    return (
        f"there is no room for {slots_of(num_slots, context_length)} tokens in the card's {ADDRESS_SPACE // _GIB} GiB"
        f" beside {dram.image_bytes / _GIB:.2f} GiB of weights; serving {dram.contexts}"
    )
