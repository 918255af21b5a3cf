"""What vision needs besides a runtime; a server of language models does without."""

import importlib.util

from npuserve.errors import DeviceUnavailableError

# Module -> the package that brings it.
PACKAGES = {"PIL": "pillow", "python_multipart": "python-multipart"}


def check_packages() -> None:
    """Raise DeviceUnavailableError when one is missing: at the start, not at the first picture."""
    missing = [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise DeviceUnavailableError(f"vision needs {' and '.join(missing)}; pip install {' '.join(missing)}")
