"""The C++ core under address and undefined-behaviour sanitizers: random programs, most of them wrong somewhere."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUM_SEEDS = "120"

pytestmark = pytest.mark.skipif(
    not (shutil.which("cmake") and shutil.which("g++")), reason="needs cmake and g++ to build the sanitized core"
)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


@pytest.fixture(scope="module")
def machine_test(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test executable; a compiler without sanitizer libraries is a reason to skip."""
    build = tmp_path_factory.mktemp("sanitized")
    probe = build / "probe.cpp"
    probe.write_text("int main() { return 0; }\n")
    if run("g++", "-fsanitize=address,undefined", probe, "-o", build / "probe").returncode:
        pytest.skip("this g++ has no sanitizer libraries")
    configured = run("cmake", "-S", ROOT, "-B", build, "-DNPUSERVE_SANITIZE=ON")
    assert configured.returncode == 0, configured.stdout[-3000:]
    built = run("cmake", "--build", build, "--parallel", "2")
    assert built.returncode == 0, built.stdout[-3000:]
    return build / "machine_test"


@pytest.mark.timeout(1800)  # on a loaded machine the build alone takes minutes
def test_no_program_makes_the_core_misbehave(machine_test: Path) -> None:
    done = run(machine_test, "1", NUM_SEEDS)
    assert done.returncode == 0, done.stdout[-3000:]
