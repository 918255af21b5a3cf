from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from npuserve.engine.token_counts import TokenCounts


@given(
    tokens=st.lists(st.integers(0, 200), max_size=300),
    num_prompt_tokens=st.integers(0, 40),
    stops=st.lists(st.integers(0, 300)),
)
def test_counting_in_pieces_equals_counting_at_once(
    tokens: list[int], num_prompt_tokens: int, stops: list[int]
) -> None:
    counts = TokenCounts(num_prompt_tokens)
    for stop in sorted({min(stop, len(tokens)) for stop in stops} | {len(tokens)}):
        counts.catch_up(tokens[:stop])
    generated = Counter(tokens[num_prompt_tokens:])
    assert counts.ids.tolist() == list(dict.fromkeys(tokens))
    assert counts.generated.tolist() == [generated[token] for token in dict.fromkeys(tokens)]
