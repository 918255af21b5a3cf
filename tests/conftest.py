"""Options of the whole test run."""

import httpx
import pytest
from httpx import _config as httpx_config
from hypothesis import HealthCheck, settings

from patience import WAIT_S

# How long an example takes, to make or to try, says more about the machine's other work than about the code.
settings.register_profile("npuserve", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("npuserve")
# So does how long a reply takes: httpx gives it 5 s unless it is told otherwise.
vars(httpx_config.DEFAULT_TIMEOUT_CONFIG).update(vars(httpx.Timeout(WAIT_S)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run tests that take minutes")
    parser.addoption("--hw", choices=("xdma", "rockchip"), help="also run tests that need this hardware")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="takes minutes; run with --slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)
