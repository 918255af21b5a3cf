"""The systemd units: hardened, and understood by systemd."""

import shutil
import subprocess
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = ("kiln-serve.service", "otpu-serve.service")


def settings(unit: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / unit).read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_is_hardened_and_starts_again(unit: str) -> None:
    found = settings(unit)
    for key, value in {
        "Type": "notify",
        "Restart": "on-failure",
        "DynamicUser": "yes",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "CapabilityBoundingSet": "",
        "DevicePolicy": "closed",
        "StateDirectory": unit.removesuffix(".service"),
        "User": unit.removesuffix(".service"),
    }.items():
        assert found[key] == [value], key
    assert all(value.endswith(" rw") for value in found["DeviceAllow"])
    assert found["ExecStart"][0].split()[0] == f"/opt/npuserve/bin/{unit.removesuffix('.service')}"


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_a_unit(unit: str, tmp_path: Path) -> None:
    text = (DEPLOY / unit).read_text().replace(f"/opt/npuserve/bin/{unit.removesuffix('.service')}", "/bin/true")
    (tmp_path / unit).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / unit)], capture_output=True, text=True, timeout=60
    )
    ours = [line for line in done.stderr.splitlines() if unit in line]
    assert ours == []
