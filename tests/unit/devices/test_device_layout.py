import pytest

from npuserve.checkpoints.checkpoint import Checkpoint, open_checkpoint
from npuserve.devices.isa import IsaSettings, device_layout
from tiny_checkpoint import tiny_config, write_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    config = tiny_config(max_position_embeddings=1 << 17)
    return open_checkpoint(write_checkpoint(tmp_path_factory.mktemp("tiny"), config))


def test_what_fits_is_served_without_a_word(checkpoint: Checkpoint) -> None:
    notices: list[str] = []
    dram = device_layout(checkpoint, IsaSettings(num_slots=8, context_length=2048), notices.append)
    assert (dram.num_slots, dram.geometry.capacity) == (8, 2048)
    assert not notices


def test_fewer_slots_than_asked_for_are_told_in_one_line(checkpoint: Checkpoint) -> None:
    notices: list[str] = []
    dram = device_layout(checkpoint, IsaSettings(num_slots=1000, context_length=1 << 17), notices.append)
    assert 1 < dram.num_slots < 1000
    assert len(notices) == 1
    assert notices[0].endswith(f"serving {dram.num_slots} slots of {1 << 17}")


def test_a_context_longer_than_the_models_is_not_missed(checkpoint: Checkpoint) -> None:
    notices: list[str] = []
    dram = device_layout(checkpoint, IsaSettings(num_slots=1, context_length=1 << 20), notices.append)
    assert dram.geometry.capacity == 1 << 17
    assert not notices
