"""Pages of a simulated card: a restored context goes on as if it had never left."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from npuserve.core import PAGE_TOKENS, Row
from npuserve.devices.otpu import OtpuDevice
from npuserve.sim.link import SimulatorLink
from npuserve.sim.native import NativeLink, available
from simulated_device import Simulated, simulate
from tiny_checkpoint import tiny_config, write_checkpoint

pytestmark = pytest.mark.skipif(not available(), reason="the native core is not built")

TOKENS = np.random.default_rng(5).integers(0, 300, 400)


@pytest.fixture(scope="module", params=["any link", "native link"])
def simulated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    path: Path = write_checkpoint(tmp_path_factory.mktemp("tiny"), tiny_config())
    made = simulate(path, kind="native", capacity=512, num_slots=2)
    link = made.link
    assert isinstance(link, NativeLink)
    if request.param == "any link":
        # The same machine, without its own way to move blocks.
        made.device._pages._link = SimulatorLink(link.machine, link.machine.config)
    return made


def continued(device: OtpuDevice, slot: int, start: int) -> NDArray[np.float32]:
    """Logits of TOKENS from `start` on, in chunks that no page ends with."""
    parts = []
    for first in range(start, len(TOKENS), 23):
        rows = [Row(slot, at, int(TOKENS[at]), True) for at in range(first, min(first + 23, len(TOKENS)))]
        parts.append(device.step(rows).logits.copy())
    return np.concatenate(parts)


@pytest.mark.parametrize("num_pages", [1, 3, 5])
def test_a_restored_context_goes_on_bit_for_bit(simulated: Simulated, num_pages: int) -> None:
    device = simulated.device
    start = num_pages * PAGE_TOKENS
    uninterrupted = simulated.feed(TOKENS, slot=0)[start:]
    pages = [device.save(0, page) for page in range(num_pages)]
    simulated.feed(TOKENS[::-1].copy(), slot=1)
    simulated.feed((TOKENS + 1) % 300, slot=0)
    device.restore(1, 0, pages)
    np.testing.assert_array_equal(continued(device, 1, start), uninterrupted)


def test_pages_restored_one_by_one_or_at_once_are_the_same(simulated: Simulated) -> None:
    device = simulated.device
    simulated.feed(TOKENS, slot=0)
    pages = [device.save(0, page) for page in range(5)]
    device.restore(1, 0, pages[:3])
    device.restore(1, 3, pages[3:4])
    device.restore(1, 4, pages[4:])
    for page in range(5):
        np.testing.assert_array_equal(device.save(1, page), pages[page])


def test_a_page_is_a_copy_of_the_size_told(simulated: Simulated) -> None:
    device = simulated.device
    simulated.feed(TOKENS, slot=0)
    page = device.save(0, 1)
    assert page.dtype == np.uint8
    assert page.shape == (device.capabilities.page_bytes,)
    before = page.copy()
    simulated.feed((TOKENS + 1) % 300, slot=0)
    np.testing.assert_array_equal(page, before)


@pytest.mark.parametrize(
    ("slot", "page", "shape", "message"),
    [(2, 0, None, "slot 2"), (0, -1, None, "page"), (0, 8, None, "pages 8 to 8"), (0, 0, (7,), "a saved page has")],
)
def test_what_is_no_page_is_refused(
    simulated: Simulated, slot: int, page: int, shape: tuple[int] | None, message: str
) -> None:
    data = np.zeros(shape or (simulated.device.capabilities.page_bytes,), np.uint8)
    with pytest.raises(ValueError, match=message):
        simulated.device.restore(slot, page, [data])
