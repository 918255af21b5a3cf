"""From a checkpoint to the model that clients see."""

import tokenizers

from npuserve.checkpoints.checkpoint import Checkpoint
from npuserve.devices.base import Capabilities
from npuserve.server.sampling import sampling_defaults
from npuserve.server.state import ServedModel
from npuserve.text.chat_template import ChatTemplate
from npuserve.text.tokenizer import Tokenizer


def served_model(
    checkpoint: Checkpoint,
    tokenizer: tokenizers.Tokenizer,
    capabilities: Capabilities,
    *,
    name: str,
    think: bool = False,
    splits_reasoning: bool = False,
    chat_template: str | None = None,
) -> ServedModel:
    """`tokenizer` is the checkpoint's, loaded by the caller; `chat_template` replaces its own.

    Raises CheckpointError.
    """
    special = checkpoint.special_tokens
    strings = {"bos_token": special.bos, "eos_token": special.eos, "pad_token": special.pad}
    source = chat_template or checkpoint.chat_template
    return ServedModel(
        name=name,
        tokenizer=Tokenizer(tokenizer),
        template=ChatTemplate(source, {key: text for key, text in strings.items() if text}),
        context_length=capabilities.context_length,
        vocab_size=capabilities.vocab_size,
        end_ids=special.stop_ids,
        defaults=sampling_defaults(checkpoint.name, checkpoint.generation_config),
        think=think,
        splits_reasoning=splits_reasoning,
    )
