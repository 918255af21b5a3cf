"""What each machine register holds in our programs."""

from enum import IntEnum


class Reg(IntEnum):
    """R0 reads zero; R8 to R15 hold run arguments at the start, which our programs do not use."""

    LAYER = 1
    """DRAM address of the current layer's part of the image."""
    TABLE = 2
    """DRAM address of the current layer's segment words."""
    ROW = 3
    """TMEM address of the current decode row's record."""
    SEGMENT = 4
    """TMEM address of the current segment's words."""
    KEYS = 5
    KEY_SCALES = 6
    VALUES = 7
    VALUE_SCALES = 8
    MASK = 9
    FULL_BLOCKS = 10
    MASKED_BLOCKS = 11
    INPUTS = 12
    """DRAM address of the rows' inputs to the current layer."""
    SCALES = 12
    """Of the current chunk of the head, after the layers."""
    LOGITS = 13
    DIRECTORY = 14
    """DRAM address of the current layer's directory entry."""
    KIND = 15
    """1 where the current layer is of the kind whose body follows, else 0."""
    STATE = 5
    """DRAM address of the current segment's state; recurrent layers have no keys."""
    HAS_STATE = 6
    IS_NEW = 6
    HEAD_KEYS = 7
    """The current row as the current head of a delta rule sees it: its q and k, its v and result, its gates."""
    HEAD_VALUES = 8
    HEAD_GATES = 9


class SegmentWord(IntEnum):
    """The words of a segment in the step table; all but the counts are DRAM addresses."""

    WRITE_KEYS = 0
    WRITE_KEY_SCALES = 1
    WRITE_VALUES = 2
    WRITE_VALUE_SCALES = 3
    KEYS = 4
    KEY_SCALES = 5
    VALUES = 6
    VALUE_SCALES = 7
    STATE = 8
    FULL_BLOCKS = 9
    MASKED_BLOCKS = 10
    FIRST_BLOCKS = 11
    """Blocks with a mask before those without, where a layer has a window."""
    HAS_STATE = 12
    """1, but 0 at the beginning of a conversation, whose state is zeros."""
    IS_NEW = 13
    """The opposite."""
