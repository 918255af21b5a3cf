"""otpu-pull: fetch a checkpoint by its short name."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from npuserve import __version__
from npuserve.checkpoints.catalog import catalog, catalog_entry
from npuserve.checkpoints.locate import default_models_folder, find_checkpoint
from npuserve.checkpoints.progress import Progress
from npuserve.cli.exit_status import exit_status
from npuserve.errors import NpuserveError
from npuserve.home import expanded

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the checkpoint's folder; returns the exit status: 0, 1 for an error, 130 for an interrupt."""
    return exit_status("otpu-pull", lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.list:
        _print_list()
        return 0
    if options.name is None:
        parser.error("give a short name, or --list to see them")
    try:
        print(_pull(options.name, None if options.dir is None else expanded(options.dir)))
    except NpuserveError as error:
        print(f"otpu-pull: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"otpu-pull: interrupted; run 'otpu-pull {options.name}' again to go on", file=sys.stderr)
        return _INTERRUPTED
    return 0


def _pull(name: str, folder: Path | None) -> Path:
    from npuserve.checkpoints.download import pull

    entry = catalog_entry(name)
    if folder is None and isinstance(found := find_checkpoint(name), Path):
        return found
    return pull(entry, folder or default_models_folder(), Progress())


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("it is empty; give a folder, . for this one")
    return Path(text)


def _print_list() -> None:
    for name, entry in sorted(catalog().items()):
        found = find_checkpoint(name)
        where = found if isinstance(found, Path) else "-"
        if entry.unbuilt:
            where = f"{where}  [not served yet: {entry.unbuilt}]"
        print(f"{name:14} {entry.repository or '(no public repository)':38} {entry.licence:22} {where}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="otpu-pull", description="Fetch a model's checkpoint by its short name.")
    parser.add_argument("--version", action="version", version=f"otpu-pull (npuserve) {__version__}")
    parser.add_argument("name", nargs="?", metavar="NAME", help="short name of the model")
    parser.add_argument(
        "--dir",
        type=_folder,
        metavar="DIR",
        help="models folder to put it into (default: $NPUSERVE_MODELS, else npuserve/models in the user's cache)",
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="list the known names, repositories, licences and where each is on this machine",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
