from typing import Any

import pytest

from npuserve.core import SamplingParams
from npuserve.errors import RequestError
from npuserve.server.sampling import Generation, SamplingDefaults, read_generation, sampling_defaults


def read(max_tokens: int | None = 10, defaults: SamplingDefaults | None = None, **body: Any) -> Generation:
    return read_generation(
        body, defaults or SamplingDefaults(), max_tokens=max_tokens, vocab_size=100, end_ids=frozenset({2})
    )


def test_request_that_says_nothing_gets_the_defaults() -> None:
    defaults = SamplingDefaults(0.6, 20, 0.95, 0.1, 1.2)
    sampling = read(defaults=defaults).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.6, 20, 0.95)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.1, 1.2)
    assert (sampling.max_tokens, sampling.stop_token_ids) == (10, frozenset({2}))


def test_fields_override_the_defaults() -> None:
    body: dict[str, Any] = {
        "temperature": 0,
        "top_k": 5,
        "top_p": 0.5,
        "min_p": 0.25,
        "repeat_penalty": 1.5,
        "presence_penalty": 1,
    }
    assert read(seed=1, **body).sampling == SamplingParams(
        temperature=0.0,
        top_k=5,
        top_p=0.5,
        min_p=0.25,
        repetition_penalty=1.5,
        presence_penalty=1.0,
        seed=1,
        max_tokens=10,
        stop_token_ids=frozenset({2}),
    )


@pytest.mark.parametrize(("asked", "taken"), [(-1, 64), (0, 64), (1, 1), (64, 64), (65, 64), (10**9, 64)])
def test_top_k_is_capped_at_what_the_sampler_takes(asked: int, taken: int) -> None:
    assert read(top_k=asked).sampling.top_k == taken


def test_repetition_penalty_wins_over_its_other_name() -> None:
    assert read(repetition_penalty=1.1, repeat_penalty=1.9).sampling.repetition_penalty == 1.1


@pytest.mark.parametrize(("asked", "taken"), [(-1, (1 << 64) - 1), (7, 7), ((1 << 64) - 1, (1 << 64) - 1)])
def test_any_64_bit_seed_is_taken_modulo_two_to_the_64(asked: int, taken: int) -> None:
    assert read(seed=asked).sampling.seed == taken


def test_missing_seed_is_drawn() -> None:
    assert len({read().sampling.seed for _ in range(4)}) == 4


def test_ignored_end_of_turn_leaves_the_clients_own_stop_tokens() -> None:
    assert read(stop_token_ids=[5, 6]).sampling.stop_token_ids == {2, 5, 6}
    assert read(stop_token_ids=[5, 6], ignore_eos=True).sampling.stop_token_ids == {5, 6}


def test_logit_bias_is_by_token_in_order() -> None:
    assert read(logit_bias={"7": 1, "3": -2.5}).sampling.logit_bias == ((3, -2.5), (7, 1.0))


def test_single_stop_string_is_a_list_of_one() -> None:
    assert read(stop="x").text.stop_strings == ("x",)
    assert read(stop=["x", "y"]).text.stop_strings == ("x", "y")


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    assert read(max_tokens=5, min_tokens=5).sampling.min_tokens == 5
    assert read(max_tokens=None, min_tokens=5).sampling.min_tokens == 5
    with pytest.raises(RequestError, match="min_tokens is 6, but the reply has at most 5 tokens"):
        read(max_tokens=5, min_tokens=6)


def test_generation_config_gives_the_defaults_and_greedy_when_it_does_not_sample() -> None:
    config = {"temperature": 0.7, "top_k": 100, "top_p": 0.8, "repetition_penalty": 1.05, "do_sample": True}
    assert sampling_defaults("m", config) == SamplingDefaults(0.7, 64, 0.8, 0.0, 1.05)
    assert sampling_defaults("m", {"do_sample": False, "temperature": 0.7}).temperature == 0.0
    assert sampling_defaults("m", {}) == SamplingDefaults()


def test_nonsense_in_generation_config_is_passed_over() -> None:
    config = {"temperature": "hot", "top_p": 0, "top_k": None, "min_p": float("nan"), "repetition_penalty": -1}
    assert sampling_defaults("m", config) == SamplingDefaults()


def test_authors_recommendation_fills_what_generation_config_leaves_open() -> None:
    assert sampling_defaults("SmolLM2-135M-Instruct", {}) == SamplingDefaults(temperature=0.2, top_p=0.9)
    assert sampling_defaults("SmolLM2-135M-Instruct", {"temperature": 1.0}).temperature == 1.0
