from npuserve.drivers.registers import (
    NUM_ARGUMENTS,
    Caps,
    Extensions,
    Register,
    Status,
    extensions,
    extensions_word,
    version_word,
)


def test_registers_are_words_and_arguments_do_not_overlap_them() -> None:
    assert all(register % 4 == 0 for register in Register)
    arguments = range(Register.ARG0, Register.ARG0 + 4 * NUM_ARGUMENTS)
    assert [register for register in Register if register in arguments] == [Register.ARG0]


def test_the_version_of_the_board() -> None:
    assert version_word(128, 4, 8) == 0x0080_0408


def test_bits_stand_where_the_manual_has_them() -> None:
    assert Status(0x69) == Status.HALTED | Status.WR_IDLE | Status.CALIB0 | Status.CALIB1
    assert Status(0x103) == Status.HALTED | Status.ERROR | Status.WAIT_TO
    assert Caps(0xC300_0000) == Caps.WAITW | Caps.GEN | Caps.ARGS | Caps.ACT_ROWS


def test_extensions_count_only_behind_their_mark() -> None:
    assert extensions(extensions_word(Extensions.NVFP4)) == Extensions.NVFP4
    assert extensions(extensions_word(Extensions(0))) == Extensions(0)
    assert extensions(0xDEAD_BEEF) == Extensions(0)
    assert extensions(0x4E50_FFFE) == Extensions(0)
