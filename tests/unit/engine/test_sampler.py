import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from npuserve.core import SamplingParams
from npuserve.engine.draws import uniform
from npuserve.engine.sampler import Sampler, top_ids
from npuserve.errors import DeviceError

Logits = NDArray[np.float32]


def float32(value: float) -> float:
    return float(np.float32(value))


def reference(params: SamplingParams, num_prompt_tokens: int, logits: Logits, tokens: Sequence[int]) -> int:
    """The slow and obvious sampler: lists of float64, a sort of the whole vocabulary, everything counted anew."""
    generated = list(tokens[num_prompt_tokens:])
    row = [float(logit) for logit in logits]
    for token, bias in params.logit_bias:
        row[token] = float32(row[token] + bias)
    for token in set(tokens):
        logit = row[token]
        logit = logit / params.repetition_penalty if logit > 0 else logit * params.repetition_penalty
        presence = params.presence_penalty if token in generated else 0.0
        row[token] = float32(logit - (presence + params.frequency_penalty * generated.count(token)))
    if len(generated) < params.min_tokens:
        for token in params.stop_token_ids:
            row[token] = -math.inf
    ranked = sorted(range(len(row)), key=lambda token: (-row[token], token))
    if params.temperature == 0.0:
        return ranked[0]
    ranked = ranked[: min(params.top_k, 64)]
    weights = {token: math.exp((row[token] - row[ranked[0]]) / params.temperature) for token in ranked}
    ranked = [token for token in ranked if weights[token] >= params.min_p]
    total = sum(weights[token] for token in ranked)
    kept: list[int] = []
    kept_sum = 0.0
    for token in ranked:
        if kept and kept_sum >= params.top_p * total:
            break
        kept.append(token)
        kept_sum += weights[token]
    point = uniform(params.seed, len(tokens)) * kept_sum
    for token in kept:
        point -= weights[token]
        if point < 0:
            return token
    return kept[-1]


@st.composite
def cases(draw: st.DrawFn) -> tuple[SamplingParams, int, Logits, list[int]]:
    """Parameters, prompt length, logits (smooth, or coarse with many ties) and tokens of one sequence."""
    vocab_size = draw(st.sampled_from([1, 2, 63, 64, 65, 127, 1000, 4096, 4100, 5000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = rng.normal(0.0, draw(st.sampled_from([0.1, 3.0, 30.0])), vocab_size)
    if draw(st.booleans()):
        logits = np.round(logits)
    tokens = rng.integers(0, min(vocab_size, draw(st.sampled_from([3, 200, 10_000]))), draw(st.integers(1, 80)))
    token = st.integers(0, vocab_size - 1)
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.01, 0.7, 1.0, 5.0])),
        top_k=draw(st.integers(1, 64)),
        top_p=draw(st.sampled_from([1.0, 0.95, 0.5, 1e-6])),
        min_p=draw(st.sampled_from([0.0, 0.05, 0.5, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.5])),
        presence_penalty=draw(st.sampled_from([0.0, 1.5, -2.0])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.3, -1.0])),
        seed=draw(st.integers(-(2**63), 2**64 - 1)),
        min_tokens=draw(st.integers(0, 40)),
        stop_token_ids=draw(st.frozensets(token, max_size=3)) if vocab_size > 3 else frozenset(),
        logit_bias=tuple(draw(st.dictionaries(token, st.floats(-100, 100, width=32), max_size=4)).items()),
    )
    return params, draw(st.integers(1, len(tokens))), logits.astype(np.float32), tokens.tolist()


@settings(max_examples=300, deadline=None)
@given(case=cases())
def test_every_choice_is_the_slow_references(case: tuple[SamplingParams, int, Logits, list[int]]) -> None:
    params, num_prompt_tokens, logits, tokens = case
    before = logits.copy()
    sampler = Sampler(params, num_prompt_tokens)
    for length in range(num_prompt_tokens, len(tokens) + 1, 7):
        chosen = sampler.sample(logits, tokens[:length])
        assert chosen == reference(params, num_prompt_tokens, logits, tokens[:length])
    np.testing.assert_array_equal(logits, before)


@settings(max_examples=100, deadline=None)
@given(
    vocab_size=st.integers(1, 9000),
    top_k=st.integers(1, 100),
    seed=st.integers(0, 2**32),
    num_levels=st.integers(1, 50),
)
def test_the_top_ids_are_exact_whatever_ties(vocab_size: int, top_k: int, seed: int, num_levels: int) -> None:
    logits = np.random.default_rng(seed).integers(0, num_levels, vocab_size).astype(np.float32)
    exact = sorted(range(vocab_size), key=lambda token: (-logits[token], token))[: min(top_k, 64)]
    assert top_ids(logits, top_k).tolist() == exact


CHI_SQUARE_LOGITS = np.array([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5], dtype=np.float32)


@pytest.mark.parametrize("axis", ["positions", "seeds"])
@pytest.mark.parametrize(
    ("params", "weigh"),
    [
        (SamplingParams(), lambda p: p),
        (SamplingParams(temperature=0.5), lambda p: p**2),
        (SamplingParams(top_k=5), lambda p: np.where(np.arange(8) < 5, p, 0)),
        (SamplingParams(top_p=0.6), lambda p: np.where(np.cumsum(p) - p < 0.6, p, 0)),
        (SamplingParams(min_p=0.2), lambda p: np.where(p >= 0.2 * p[0], p, 0)),
    ],
)
def test_draws_follow_the_distribution(
    params: SamplingParams, weigh: Callable[[NDArray[np.float64]], NDArray[np.float64]], axis: str
) -> None:
    """Chi-square at one in ten thousand, on fixed seeds."""
    num_draws = 8000
    softmax = np.exp(CHI_SQUARE_LOGITS.astype(np.float64))
    expected = weigh(softmax / softmax.sum())
    expected = expected / expected.sum() * num_draws
    counts = np.zeros(8)
    for draw in range(num_draws):
        seed, length = (11, draw + 1) if axis == "positions" else (draw, 9)
        sampler = Sampler(SamplingParams(params.temperature, params.top_k, params.top_p, params.min_p, seed=seed), 1)
        counts[sampler.sample(CHI_SQUARE_LOGITS, range(length))] += 1
    possible = expected > 0
    assert counts[~possible].sum() == 0
    chi_square = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    critical = {2: 15.1, 3: 18.4, 4: 21.1, 5: 23.5, 6: 25.7, 7: 27.9, 8: 29.9}
    assert chi_square < critical[int(possible.sum())]


def test_stop_tokens_are_never_chosen_before_min_tokens() -> None:
    logits = np.zeros(100, dtype=np.float32)
    logits[3] = 50.0
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature, min_tokens=2, stop_token_ids=frozenset({3, 4_000_000}))
        sampler = Sampler(params, num_prompt_tokens=2)
        assert sampler.sample(logits, [1, 2]) != 3
        assert sampler.sample(logits, [1, 2, 9]) != 3
        assert sampler.sample(logits, [1, 2, 9, 9]) == 3


def test_the_repetition_penalty_covers_the_prompt_and_the_others_do_not() -> None:
    logits = np.array([1.0, 0.9], dtype=np.float32)
    assert Sampler(SamplingParams(0.0, repetition_penalty=2.0), 1).sample(logits, [0]) == 1
    assert Sampler(SamplingParams(0.0, presence_penalty=2.0, frequency_penalty=2.0), 1).sample(logits, [0]) == 0
    assert Sampler(SamplingParams(0.0, presence_penalty=2.0), 1).sample(logits, [0, 0]) == 1
    assert Sampler(SamplingParams(0.0, frequency_penalty=0.06), 1).sample(logits, [1, 0, 0]) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("penalty", [5e-324, 1e-40])
def test_a_penalty_beyond_float32_still_leaves_a_token(temperature: float, penalty: float) -> None:
    params = SamplingParams(temperature, repetition_penalty=penalty)
    assert Sampler(params, 1).sample(np.array([3.0, 1.0, 2.0], dtype=np.float32), [1]) == 1


def test_a_tiny_temperature_is_greedy() -> None:
    logits = np.random.default_rng(3).normal(0, 3, 1000).astype(np.float32)
    assert Sampler(SamplingParams(temperature=1e-308), 1).sample(logits, [5]) == logits.argmax()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_the_devices_fault(temperature: float, wrong: float) -> None:
    logits = np.zeros(1000, dtype=np.float32)
    logits[777] = wrong
    with pytest.raises(DeviceError, match="not finite at position 3"):
        Sampler(SamplingParams(temperature), 1).sample(logits, [1, 2, 3])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_that_leaves_no_token_to_choose_is_told_so(temperature: float) -> None:
    params = SamplingParams(temperature, min_tokens=5, stop_token_ids=frozenset({0, 1}))
    with pytest.raises(DeviceError, match="leave no token to choose"):
        Sampler(params, 1).sample(np.zeros(2, dtype=np.float32), [1])


def mask_of(tokens: set[int], vocab_size: int) -> bytes:
    bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
    bits[sorted(tokens)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


@given(st.integers(65, 500), st.integers(0, 1 << 30), st.sampled_from([0.0, 0.7, 5.0]), st.sampled_from([0.0, 0.5]))
def test_only_allowed_tokens_are_chosen(vocab_size: int, seed: int, temperature: float, min_p: float) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=5, size=vocab_size).astype(np.float32)
    allowed = set(rng.choice(vocab_size, size=int(rng.integers(1, 70)) % vocab_size or 1, replace=False).tolist())
    params = SamplingParams(temperature=temperature, min_p=min_p, seed=seed, top_k=64)
    token = Sampler(params, 1).sample(logits, [0], mask_of(allowed, vocab_size))
    assert token in allowed
    if temperature == 0.0:
        assert token == max(allowed, key=lambda one: logits[one])


def test_mask_shorter_than_the_logits_allows_nothing_beyond_it() -> None:
    logits = np.arange(200, dtype=np.float32)
    assert Sampler(SamplingParams(temperature=0.0), 1).sample(logits, [0], mask_of({3, 5}, 32)) == 5


def test_empty_mask_leaves_no_token() -> None:
    for temperature in (0.0, 1.0):
        with pytest.raises(DeviceError, match="leave no token"):
            Sampler(SamplingParams(temperature=temperature), 1).sample(np.ones(64, np.float32), [0], bytes(8))


def test_min_tokens_cannot_keep_a_complete_reply_from_ending() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=5, stop_token_ids=frozenset({2}))
    logits = np.ones(64, np.float32)
    assert Sampler(params, 1).sample(logits, [0], mask_of({2}, 64)) == 2
    assert Sampler(params, 1).sample(logits, [0], mask_of({2, 9}, 64)) == 9
