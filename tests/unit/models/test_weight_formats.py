"""Plans of weight formats: the rules of mix strings, and the kinds of layers that come of them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from npuserve.errors import ConfigError
from npuserve.models.facts import DeltaFacts, ModelFacts
from npuserve.models.registry import model_facts
from npuserve.models.weight_formats import (
    FormatPlan,
    describe_formats,
    format_label,
    format_plan,
    parse_mix,
    with_formats,
)
from npuserve.quant.formats import FORMATS, FP4, INT4, INT8, NVFP4

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "vocab_size": 100,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
}


@pytest.fixture
def facts() -> ModelFacts:
    return model_facts(LLAMA)


@pytest.fixture
def convolutional(facts: ModelFacts) -> ModelFacts:
    """Layers 0, 1 and 4 with a short convolution in place of attention."""
    other = replace(facts, conv_taps=3, num_heads=0, num_kv_heads=0, inverse_frequencies=np.zeros(0))
    return replace(facts, variants=(other,), layer_kinds=(1, 1, 0, 0, 1, 0))


def mixed(facts: ModelFacts, mix: str) -> ModelFacts:
    return with_formats(facts, FormatPlan(INT8, parse_mix(mix)))


def layers(facts: ModelFacts) -> list[str]:
    return [str(facts.kinds[facts.kind_of(layer)].formats) for layer in range(facts.num_layers)]


def test_int8_leaves_the_facts_as_they_are(facts: ModelFacts, convolutional: ModelFacts) -> None:
    plain = with_formats(facts, FormatPlan())
    assert (plain.variants, plain.layer_kinds, plain.head_format) == ((), (), INT8)
    other = with_formats(convolutional, FormatPlan())
    assert other.layer_kinds == convolutional.layer_kinds
    assert [kind.conv_taps for kind in other.kinds] == [0, 3]


@pytest.mark.parametrize("name", FORMATS)
def test_one_format_is_that_of_all_layers_and_the_head(facts: ModelFacts, name: str) -> None:
    found = with_formats(facts, format_plan(name, None, "down=int4"))
    assert layers(found) == [f"{name}/{name}/{name}/{name}"] * 6
    assert found.head_format.name == name
    assert found.variants == ()
    assert describe_formats(found) == format_label(found) == name


@pytest.mark.parametrize("wformat", ["mix", "auto"])
def test_a_mix_is_int8_but_for_its_rules(facts: ModelFacts, wformat: str) -> None:
    found = with_formats(facts, format_plan(wformat, None, "mlp@4-29=fp4"))
    assert layers(found) == ["int8/int8/int8/int8"] * 4 + ["int8/fp4/fp4/int8"] * 2
    assert found.head_format is INT8
    assert found.layer_kinds == (0, 0, 0, 0, 1, 1)


def test_auto_without_a_mix_is_int8_and_mix_is_refused() -> None:
    assert format_plan("auto", None, "") == FormatPlan(INT8, keeps=True)
    with pytest.raises(ConfigError, match="no mix of formats is recommended for this model"):
        format_plan("mix", None, "")


def test_the_head_follows_the_rules_unless_it_has_a_format_of_its_own(facts: ModelFacts) -> None:
    mix = "head=fp4,down@0-3=fp4"
    assert with_formats(facts, format_plan("auto", None, mix)).head_format is FP4
    assert with_formats(facts, format_plan("auto", "int8", mix)).head_format is INT8
    assert with_formats(facts, format_plan("int8", "nvfp4", "")).head_format is NVFP4


def test_rules_with_a_range_beat_those_without_and_among_equals_the_first_wins(facts: ModelFacts) -> None:
    found = mixed(facts, "mlp=int4,gateup=fp4, down@2-3=nvfp4,mlp@3-4=fp4,attn@5-9=int4")
    assert layers(found) == [
        "int8/int4/int4/int8",
        "int8/int4/int4/int8",
        "int8/int4/nvfp4/int8",
        "int8/fp4/nvfp4/int8",
        "int8/fp4/fp4/int8",
        "int4/int4/int4/int8",
    ]


def test_kinds_of_layers_are_split_by_their_formats(convolutional: ModelFacts) -> None:
    found = mixed(convolutional, "conv=fp4,mlp@2-4=int4")
    assert layers(found) == [
        "fp4/int8/int8/int8",
        "fp4/int8/int8/int8",
        "int8/int4/int4/int8",
        "int8/int4/int4/int8",
        "fp4/int4/int4/int8",
        "int8/int8/int8/int8",
    ]
    taps = [found.kinds[kind].conv_taps for kind in found.layer_kinds]
    assert taps == [3, 3, 0, 0, 3, 0]
    assert not found.conv_taps, "the usual layer stays attention"
    assert len(found.kinds) == 4


def test_each_mixer_has_a_name_of_its_own(facts: ModelFacts, convolutional: ModelFacts) -> None:
    delta = replace(convolutional.variants[0], delta=DeltaFacts(1, 1, 64, 64))
    assert [kind.mixer for kind in (facts, convolutional.variants[0], delta)] == ["attn", "conv", "delta"]
    found = mixed(replace(convolutional, variants=(delta,)), "delta=fp4")
    assert layers(found)[:3] == ["fp4/int8/int8/int8"] * 2 + ["int8/int8/int8/int8"]


def test_own_inputs_are_a_kind_where_there_are_any(facts: ModelFacts) -> None:
    assert layers(mixed(replace(facts, input_size=64), "ple=int4,mlp=fp4"))[0] == "int8/fp4/fp4/int4"
    with pytest.raises(ConfigError, match="'ple=int4' in a mix of formats: this model has attn"):
        mixed(facts, "ple=int4")


def test_a_usual_layer_that_no_layer_is_stays(convolutional: ModelFacts) -> None:
    only = replace(convolutional, layer_kinds=(1,) * 6)
    found = mixed(only, "conv@0-2=fp4")
    assert found.kinds[0].conv_taps == 0
    assert found.layer_kinds == (1, 1, 1, 2, 2, 2)


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        ("mlp", "'mlp' in a mix of formats is not kind=format or kind@first-last=format"),
        ("mlp=int8,", "'' in a mix of formats is not"),
        ("mlp@3=fp4", "'mlp@3=fp4' in a mix of formats is not"),
        ("mlp=int9", "weight format 'int9' is not known"),
        ("mlp@3-2=fp4", "names no layers"),
        ("head@1-2=fp4", "the head has no layers; write head=fp4"),
        ("conv=fp4", "'conv=fp4' in a mix of formats: this model has attn, down, gateup, head, mlp"),
        ("mlp@6-9=fp4", "the model's layers are 0 to 5"),
    ],
)
def test_a_wrong_mix_is_told_in_a_sentence(facts: ModelFacts, mix: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mixed(facts, mix)


def test_descriptions_are_equal_for_equal_formats_and_differ_otherwise(facts: ModelFacts) -> None:
    texts = [
        describe_formats(mixed(facts, mix))
        for mix in ("mlp=fp4", "gateup=fp4,down=fp4", "mlp@0-5=fp4", "mlp@0-4=fp4", "mlp=int4", "mlp=fp4,head=fp4")
    ]
    assert texts[0] == texts[1] == texts[2] == "0-5:int8/fp4/fp4/int8,head:int8"
    assert len(set(texts)) == 4
    labels = {format_label(mixed(facts, "mlp@0-4=fp4")), format_label(mixed(facts, "mlp=fp4"))}
    assert len(labels) == 2
    assert all(label.startswith("mix-") and label.replace("-", "").isalnum() for label in labels)


def test_pair_is_only_for_models_with_four_bit_weights(facts: ModelFacts) -> None:
    assert not with_formats(facts, FormatPlan(), paired=True).formats.paired
    found = with_formats(facts, FormatPlan(INT8, parse_mix("down@1-2=int4")), paired=True)
    assert all(kind.formats.paired for kind in found.kinds)
    assert describe_formats(with_formats(facts, FormatPlan(INT4), paired=True)) == "int4p"
    assert with_formats(facts, FormatPlan(INT8, (), FP4), paired=True).formats.paired
