"""Which requests a runtime with its own loop and sampler can honour."""

from npuserve.core import Request
from npuserve.errors import ContextLengthError, RequestError
from npuserve.text.text_ids import joined_text


def check_request(request: Request, context_length: int) -> None:
    """Raise RequestError for what the runtime cannot do, ContextLengthError for token ids that leave no room.

    How many tokens a text has only the runtime knows, so a text that is too long fails when it runs.
    """
    prompt, sampling = request.prompt_ids, request.sampling
    if not prompt:
        raise RequestError("the prompt is empty; send at least one token", param="prompt")
    if len(prompt) >= context_length and joined_text(prompt) is None:
        raise ContextLengthError(len(prompt), context_length)
    if sampling.max_tokens < 1:
        raise RequestError(f"max_tokens is {sampling.max_tokens}; it must be 1 or more", param="max_tokens")
    for param, is_asked in (
        ("logit_bias", bool(sampling.logit_bias)),
        ("min_p", sampling.min_p > 0.0),
        ("min_tokens", sampling.min_tokens > 0),
        ("logprobs", request.num_logprobs is not None or request.prompt_logprobs),
        ("response_format", request.constraint is not None),
    ):
        if is_asked:
            raise RequestError(
                f"{param} cannot be honoured while the NPU's runtime samples by itself; leave it out, or set"
                " sampling = host in the [llm] section of the server's configuration",
                param=param,
                code="unsupported",
            )
