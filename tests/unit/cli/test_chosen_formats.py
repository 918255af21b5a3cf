"""What --wformat means for a model: the catalog's string, or the environment's."""

import pytest

from npuserve.checkpoints.catalog import catalog
from npuserve.cli.chosen_formats import chosen_formats, recommended_mix
from npuserve.errors import ConfigError
from npuserve.models.weight_formats import FormatPlan, parse_mix
from npuserve.quant.formats import FP4, INT8


def test_auto_is_the_catalogs_mix_for_a_short_name_and_for_its_folder() -> None:
    expected = FormatPlan(INT8, parse_mix("mlp@4-29=fp4"), keeps=True)
    assert chosen_formats("phi4-mini", "auto", None, {}) == expected
    assert chosen_formats("/models/Phi-4-mini-instruct/", "auto", None, {}) == expected
    assert chosen_formats("phi4-mini", "int8", None, {}) == FormatPlan(INT8)


@pytest.mark.parametrize("model", ["smollm2", "qwen3", "/models/unknown"])
def test_auto_is_int8_where_nothing_is_recommended(model: str) -> None:
    assert recommended_mix(model) == ""
    assert chosen_formats(model, "auto", None, {}) == FormatPlan(INT8, keeps=True)


def test_the_environment_takes_the_catalogs_place() -> None:
    environment = {"OTPU_FORMATS": "attn=fp4"}
    assert chosen_formats("phi4-mini", "mix", None, environment).rules == parse_mix("attn=fp4")
    assert chosen_formats("qwen3", "auto", "fp4", environment) == FormatPlan(INT8, parse_mix("attn=fp4"), FP4)
    assert chosen_formats("qwen3", "int8", None, environment) == FormatPlan(INT8)
    assert not chosen_formats("qwen3", "auto", None, environment).keeps
    assert chosen_formats("phi4-mini", "auto", None, {"OTPU_FORMATS": ""}).rules == parse_mix("mlp@4-29=fp4")
    with pytest.raises(ConfigError, match="'attn' in a mix of formats"):
        chosen_formats("qwen3", "auto", None, {"OTPU_FORMATS": "attn"})


def test_every_mix_of_the_catalog_can_be_read() -> None:
    mixes = [entry.mix for entry in catalog().values() if entry.mix]
    assert len(mixes) > 5
    assert all(parse_mix(mix) for mix in mixes)
