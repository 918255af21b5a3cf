from npuserve.drivers.registers import NUM_ARGUMENTS, Caps, Register, Status, version_word


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
