"""From --wformat and --head-format to a plan: what the catalog or the environment recommends for the model."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from npuserve.checkpoints.catalog import catalog

if TYPE_CHECKING:
    from npuserve.models.weight_formats import FormatPlan

VARIABLE = "OTPU_FORMATS"


def chosen_formats(model: str, wformat: str, head_format: str | None, environment: Mapping[str, str]) -> "FormatPlan":
    """The plan for a model named as on the command line; errors as `format_plan`.

    A mix in the environment goes before what a checkpoint has in 4 bits; the catalog's does not.
    """
    from npuserve.models.weight_formats import format_plan

    wanted = environment.get(VARIABLE)
    return format_plan(wformat, head_format, wanted or recommended_mix(model), keeps=not wanted)


def recommended_mix(model: str) -> str:
    """The catalog's string for a short name or for a folder called like the model's; empty where there is none."""
    if entry := catalog().get(model):
        return entry.mix
    folder = Path(model).name
    return next((entry.mix for entry in catalog().values() if entry.directory == folder), "")
