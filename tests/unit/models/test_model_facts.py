import re
from typing import Any

import numpy as np
import pytest

from npuserve.errors import CheckpointError, UnsupportedModelError
from npuserve.models.registry import FAMILIES, model_facts
from npuserve.models.rope import rotation
from tiny_checkpoint import tiny_config


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_sizes_come_from_the_configuration(family: str) -> None:
    facts = model_facts(tiny_config(family, block_auto_adjust_ff_dim=False))
    assert (facts.model_type, facts.hidden_size, facts.num_layers) == (family, 96, 2)
    assert (facts.num_heads, facts.num_kv_heads, facts.head_dim, facts.group_size) == (6, 2, 32, 3)
    assert (facts.intermediate_size, facts.vocab_size, facts.context_length) == (160, 300, 1024)
    assert facts.norm_eps == 1e-5
    assert not facts.tied_head


def test_families_differ_in_biases_and_head_norms() -> None:
    llama, qwen2, qwen3 = (model_facts(tiny_config(family)) for family in ("llama", "qwen2", "qwen3"))
    assert (llama.qkv_bias, llama.o_bias, llama.qk_norm) == (False, False, False)
    assert (qwen2.qkv_bias, qwen2.o_bias, qwen2.qk_norm) == (True, False, False)
    assert (qwen3.qkv_bias, qwen3.o_bias, qwen3.qk_norm) == (False, False, True)
    assert qwen3.names.q_norm == "self_attn.q_norm.weight"


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_attention_bias_reaches_the_output_too(family: str) -> None:
    facts = model_facts(tiny_config(family, attention_bias=True))
    assert facts.qkv_bias
    assert facts.o_bias


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def test_missing_keys_take_the_family_defaults() -> None:
    config = without(tiny_config(), "num_key_value_heads", "head_dim", "rms_norm_eps", "tie_word_embeddings")
    facts = model_facts(config)
    assert (facts.num_kv_heads, facts.head_dim, facts.norm_eps, facts.tied_head) == (6, 16, 1e-6, False)
    assert model_facts(without(tiny_config("qwen3"), "head_dim")).head_dim == 128


def test_an_unknown_type_is_told_with_the_families_there_are() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        model_facts({"model_type": "mamba"})
    assert str(caught.value) == ("model type 'mamba' is not served by this version; it serves " + ", ".join(FAMILIES))


@pytest.mark.parametrize("config", [{}, {"model_type": None}, {"model_type": ["llama"]}, {"model_type": "../llama"}])
def test_a_type_that_is_no_known_name_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match="is not served"):
        model_facts(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"num_attention_heads": 7}, "7 query heads do not divide among 2"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "'yarn'"),
        ({"rope_parameters": {"type": "longrope"}}, "'longrope'"),
    ],
)
def test_what_is_not_built_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        model_facts(tiny_config(**changes))


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "head_dim"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "96", True, [96]])
def test_a_size_that_is_none_is_named(key: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: {key} is "):
        model_facts(tiny_config(**{key: value}))


def test_a_missing_size_is_named() -> None:
    with pytest.raises(CheckpointError, match="hidden_size is None"):
        model_facts(without(tiny_config(), "hidden_size"))


@pytest.mark.parametrize(
    "changes",
    [
        {"rms_norm_eps": "small"},
        {"rms_norm_eps": [1]},
        {"rms_norm_eps": float("nan")},
        {"rms_norm_eps": -1.0},
        {"rms_norm_eps": 10**400},
        {"rope_theta": "x"},
        {"rope_theta": -5.0},
        {"rope_theta": float("inf")},
        {"rope_scaling": "llama3"},
        {"rope_scaling": {"rope_type": "linear"}},
        {"rope_scaling": {"rope_type": "linear", "factor": 0}},
        {"rope_scaling": {"rope_type": "linear", "factor": "two"}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 4.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            }
        },
    ],
)
def test_a_number_that_cannot_be_is_a_checkpoint_error(changes: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"^config\.json: "):
        model_facts(tiny_config(**changes))


def test_frequencies_fall_from_one_radian() -> None:
    facts = model_facts(tiny_config(rope_theta=100.0, head_dim=4))
    np.testing.assert_allclose(facts.inverse_frequencies, [1.0, 0.1])


def test_parameters_of_newer_checkpoints_win() -> None:
    parameters = {"rope_theta": 100.0, "rope_type": "linear", "factor": 2.0}
    facts = model_facts(tiny_config(head_dim=4, rope_theta=5.0, rope_parameters=parameters))
    np.testing.assert_allclose(facts.inverse_frequencies, [0.5, 0.05])


def test_llama3_keeps_short_wavelengths_and_stretches_long_ones() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    plain = model_facts(tiny_config(rope_theta=500_000.0, head_dim=128)).inverse_frequencies
    scaled = model_facts(tiny_config(rope_theta=500_000.0, head_dim=128, rope_scaling=scaling)).inverse_frequencies
    ratio = plain / scaled
    np.testing.assert_allclose(ratio[2 * np.pi / plain < 2048], 1)
    np.testing.assert_allclose(ratio[2 * np.pi / plain > 8192], 8)
    assert np.all(np.diff(ratio) >= -1e-12)


def test_one_list_of_rotary_factors_divides_the_frequencies() -> None:
    factors = [1.0, 2.0, 4.0, 8.0]
    scaling = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0}
    plain = rotation({}, 8).inverse_frequencies
    found = rotation({"rope_scaling": scaling}, 8)
    assert found.inverse_frequencies == pytest.approx(plain / np.array(factors))
    assert (found.gain, found.context_length) == (1.0, None)


def test_two_lists_of_rotary_factors_end_the_context_where_the_second_begins() -> None:
    scaling = {"rope_type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0]}
    lengths = {"max_position_embeddings": 131_072, "original_max_position_embeddings": 4096}
    found = rotation({"rope_scaling": scaling, "partial_rotary_factor": 0.5, **lengths}, 8)
    assert found.inverse_frequencies == pytest.approx([1.0, 0.01 / 1.5])
    assert found.context_length == 4096
    assert found.gain == pytest.approx(1.190238)


@pytest.mark.parametrize("share", [0.3, 1.5, 1e-9])
def test_a_share_of_a_head_that_cannot_rotate_is_refused(share: float) -> None:
    with pytest.raises(CheckpointError, match="partial_rotary_factor"):
        rotation({"partial_rotary_factor": share}, 10)


def test_layers_without_positions_are_a_second_kind() -> None:
    facts = model_facts(tiny_config("smollm3", num_hidden_layers=6))
    assert [facts.kinds[facts.kind_of(layer)].rotary_dim for layer in range(6)] == [32, 32, 32, 0, 32, 32]
    listed = model_facts(tiny_config("smollm3", no_rope_layers=[0, 1, 1]))
    assert listed.layer_kinds == (1, 0)


@pytest.mark.parametrize("listed", [[1], "all", 3])
def test_a_list_of_layers_that_is_none_is_refused(listed: Any) -> None:
    with pytest.raises(CheckpointError, match="no_rope_layers"):
        model_facts(tiny_config("smollm3", no_rope_layers=listed))


def test_layers_of_lfm2_are_convolutions_where_they_are_no_attention() -> None:
    facts = model_facts(tiny_config("lfm2", layer_types=["conv", "full_attention"], conv_L_cache=4))
    assert facts.layer_kinds == (1, 0)
    assert facts.has_state
    assert [kind.conv_taps for kind in facts.kinds] == [0, 4]
    assert facts.kinds[1].inputs == (("conv.in_proj", 288),)
    assert model_facts(tiny_config("lfm2", full_attn_idxs=[1])).layer_kinds == (1, 0)
    with pytest.raises(CheckpointError, match="layer_types"):
        model_facts(tiny_config("lfm2", layer_types=["conv"]))


@pytest.mark.parametrize(("factor", "size"), [(1.0, 8192), (1.5, 12288), (0.1, 1024)])
def test_lfm2_adjusts_the_size_of_its_mlp(factor: float, size: int) -> None:
    config = tiny_config("lfm2", block_ff_dim=12_288, block_ffn_dim_multiplier=factor)
    assert model_facts(config).intermediate_size == size


def gemma(**changes: Any) -> dict[str, Any]:
    types = ["sliding_attention", "full_attention"] * 3
    return tiny_config("gemma4_text", num_hidden_layers=6, layer_types=types, **changes)


def test_shared_layers_of_gemma_see_the_last_cache_of_their_kind() -> None:
    facts = model_facts(gemma(num_kv_shared_layers=2, use_double_wide_mlp=True, global_head_dim=64))
    assert facts.layer_kinds == (0, 1, 0, 1, 2, 3)
    assert facts.cache_layers == (0, 1, 2, 3, 2, 3)
    assert [kind.head_dim for kind in facts.kinds] == [32, 64, 32, 64]
    assert [kind.window for kind in facts.kinds] == [512, None, 512, None]
    assert [kind.owns_cache for kind in facts.kinds] == [True, True, False, False]
    assert [kind.intermediate_size for kind in facts.kinds] == [160, 160, 320, 320]
    assert facts.kinds[2].inputs == (("self_attn.q_proj", 192),)


def test_the_text_side_of_a_gemma_with_towers_is_served() -> None:
    facts = model_facts({"model_type": "gemma4", "text_config": gemma(num_kv_shared_layers=2), "vision_config": {}})
    assert facts.embedding == "model.language_model.embed_tokens.weight"
    skipped = ("model.vision_tower.x.weight", "model.language_model.layers.4.self_attn.k_proj.weight")
    kept = (
        "model.language_model.layers.3.self_attn.k_proj.weight",
        "model.language_model.layers.40.self_attn.k_norm.x",
    )
    assert [bool(re.match(facts.skipped, name)) for name in (*skipped, *kept)] == [True, True, False, False]


@pytest.mark.parametrize("key", ["enable_moe_block", "attention_k_eq_v", "attention_bias"])
def test_what_gemma_does_not_have_yet_is_refused(key: str) -> None:
    with pytest.raises(UnsupportedModelError, match=key):
        model_facts(gemma(**{key: True}))


def test_layers_of_qwen3_5_are_the_delta_rule_where_they_are_no_attention() -> None:
    config = tiny_config("qwen3_5_text", num_hidden_layers=8, linear_num_key_heads=2, linear_num_value_heads=4)
    facts = model_facts(config | {"linear_key_head_dim": 24, "linear_value_head_dim": 40})
    assert facts.layer_kinds == (1, 1, 1, 0, 1, 1, 1, 0)
    assert facts.has_state
    assert facts.norm_offset == 1
    assert facts.inputs[0] == ("self_attn.q_proj", 2 * 6 * 32)
    assert facts.rotary_dim == 8
    assert [rows for _, rows in facts.kinds[1].inputs] == [2 * 2 * 24 + 4 * 40, 160, 4, 4]


def test_the_text_side_of_qwen3_5_is_served() -> None:
    facts = model_facts({"model_type": "qwen3_5", "text_config": tiny_config("qwen3_5_text"), "vision_config": {}})
    assert facts.final_norm == "model.language_model.norm.weight"
    names = ("model.visual.patch_embed.proj.weight", "mtp.fc.weight", "model.language_model.layers.0.mlp.gate.weight")
    assert [bool(re.match(facts.skipped, name)) for name in names] == [True, True, False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"linear_num_key_heads": 3}, "32 value heads do not divide among 3"),
    ],
)
def test_what_qwen3_5_does_not_have_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        model_facts(tiny_config("qwen3_5_text", **changes))
