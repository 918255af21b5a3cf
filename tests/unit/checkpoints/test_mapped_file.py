from pathlib import Path

import numpy as np

from npuserve.checkpoints.mapped_file import MappedFile

PIECE = 16 << 20
NUM_PIECES = 12


def resident_file_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile:")) * 1024


def test_a_file_that_is_read_from_end_to_end_does_not_stay_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as out:
        for number in range(NUM_PIECES):
            out.write(np.full(PIECE, number, np.uint8).data)
    file = MappedFile(path)
    first = np.frombuffer(file.view(0, PIECE), np.uint8)
    before = resident_file_bytes()
    for number in range(NUM_PIECES):
        assert (np.frombuffer(file.view(number * PIECE, PIECE), np.uint8) == number).all()
        assert resident_file_bytes() - before < 6 * PIECE
    assert not first.any(), "an earlier view is still what it was"
    file.close()
