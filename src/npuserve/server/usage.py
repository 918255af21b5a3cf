"""What a reply cost, in the words of OpenAI (tokens) and llama.cpp (speed)."""

from collections.abc import Sequence

from npuserve.server.reply import Choice
from npuserve.server.wire import CompletionTokensDetails, PromptTokensDetails, Usage, WireTimings


def usage_of(choices: Sequence[Choice]) -> Usage:
    """Tokens of all choices together; a prompt that several of them share counts once."""
    firsts = {choice.prompt: choice for choice in reversed(choices)}.values()
    num_prompt = sum(choice.num_prompt_tokens for choice in firsts)
    num_completion = sum(choice.num_completion_tokens for choice in choices)
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_completion,
        total_tokens=num_prompt + num_completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(choice.num_cached_tokens for choice in firsts)),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=sum(choice.num_reasoning_tokens for choice in choices)
        ),
    )


def timings_of(choices: Sequence[Choice]) -> WireTimings:
    """Speed of the choices; of several that ran side by side the longest times count."""
    num_cached = sum(choice.num_cached_tokens for choice in choices)
    num_prompt = sum(choice.num_prompt_tokens for choice in choices) - num_cached
    num_predicted = sum(choice.num_completion_tokens for choice in choices)
    prompt_ms = 1e3 * max((choice.timings.prefill_s for choice in choices), default=0.0)
    predicted_ms = 1e3 * max((choice.timings.decode_s for choice in choices), default=0.0)
    return WireTimings(
        cache_n=num_cached,
        prompt_n=num_prompt,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=_ratio(prompt_ms, num_prompt),
        prompt_per_second=_ratio(1e3 * num_prompt, prompt_ms),
        predicted_n=num_predicted,
        predicted_ms=predicted_ms,
        predicted_per_token_ms=_ratio(predicted_ms, num_predicted),
        predicted_per_second=_ratio(1e3 * num_predicted, predicted_ms),
        cache_source=next((choice.cache_source.value for choice in choices if choice.cache_source), "none"),
    )


def _ratio(value: float, by: float) -> float:
    return value / by if by else 0.0
