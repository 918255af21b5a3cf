"""What a device can be fed; the server has checked everything else."""

from npuserve.core import Request
from npuserve.devices.base import Capabilities
from npuserve.errors import ContextLengthError, RequestError


def check_request(request: Request, capabilities: Capabilities) -> None:
    """Raise ContextLengthError for a prompt that leaves no room for a token, RequestError for what cannot be run."""
    prompt = request.prompt_ids
    if not prompt:
        raise RequestError("the prompt is empty; send at least one token", param="prompt")
    if len(prompt) >= capabilities.context_length:
        raise ContextLengthError(len(prompt), capabilities.context_length)
    if min(prompt) < 0 or max(prompt) >= capabilities.vocab_size:
        wrong = next(token for token in prompt if not 0 <= token < capabilities.vocab_size)
        raise RequestError(f"token {wrong} is outside the vocabulary of {capabilities.vocab_size}", param="prompt")
    if request.sampling.max_tokens < 1:
        raise RequestError(f"max_tokens is {request.sampling.max_tokens}; it must be 1 or more", param="max_tokens")
