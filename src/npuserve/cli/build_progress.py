"""What building a device image shows on standard error."""

import sys

from tqdm import tqdm

from npuserve.cli.exit_status import tell


class BuildProgress:
    """A bar on a terminal, one line elsewhere; called with what is done of the total."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._bar: tqdm[None] | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            if not sys.stderr.isatty():
                tell(self._command, "building the device image, which is kept for the next start")
            self._bar = tqdm(
                desc="building the device image", total=total, disable=not sys.stderr.isatty(), leave=False
            )
        self._bar.update(done - self._bar.n)
        if done >= total:
            self._bar.close()
