"""From what is known of a runtime's model to the model that clients see."""

from dataclasses import dataclass

from npuserve.checkpoints.tokenizer_folder import TokenizerFolder
from npuserve.engine.runtime_engine import RuntimeTexts
from npuserve.server.sampling import SamplingDefaults
from npuserve.server.state import ServedModel
from npuserve.text.chat_template import ChatTemplate
from npuserve.text.prompt_family import PromptFamily
from npuserve.text.runtime_tokenizer import MixedTokenizer, RuntimeTokenizer
from npuserve.text.system_prompt import with_system_prompt
from npuserve.text.tokenizer import Tokenizer

# No vocabulary is larger; what the ids of a locked-up tokenizer are checked against.
UNKNOWN_VOCAB_SIZE = 1 << 20
_UNCONSTRAINED = (
    "the NPU's runtime chooses tokens by itself; set sampling = host in the [llm] section of the server's configuration"
)


@dataclass(frozen=True, slots=True)
class RuntimeModelFacts:
    """What the server's settings say of a model beside its files; `samples_here`: not in the runtime."""

    name: str
    context_length: int
    defaults: SamplingDefaults
    system_prompt: str | None = None
    think: bool = False
    splits_reasoning: bool = False
    samples_here: bool = False


def runtime_model(
    facts: RuntimeModelFacts, family: PromptFamily, folder: TokenizerFolder | None
) -> tuple[ServedModel, RuntimeTexts]:
    """The model by its own tokenizer and template where `folder` has them, else by `family`. Raises CheckpointError."""
    tokenizer: Tokenizer
    if folder is None:
        tokenizer = RuntimeTokenizer(family.markers)
        source, special, end_ids = family.template, {}, family.end_ids
        vocab_size, end_markers = UNKNOWN_VOCAB_SIZE, family.end_markers
    else:
        own = folder.tokenizer()
        tokenizer = MixedTokenizer(own)
        tokens = folder.special_tokens
        named = {"bos_token": tokens.bos, "eos_token": tokens.eos, "pad_token": tokens.pad}
        source, special = folder.chat_template or family.template, {key: text for key, text in named.items() if text}
        vocab_size, end_ids = tokenizer.vocab_size, tokens.stop_ids
        spelled = [own.id_to_token(token_id) for token_id in sorted(end_ids)]
        end_markers = tuple(text for text in spelled if text)
    template = ChatTemplate(source, special)
    if facts.system_prompt:
        template = with_system_prompt(template, facts.system_prompt)
    model = ServedModel(
        name=facts.name,
        tokenizer=tokenizer,
        template=template,
        context_length=facts.context_length,
        vocab_size=vocab_size,
        end_ids=end_ids,
        defaults=facts.defaults,
        think=facts.think,
        splits_reasoning=facts.splits_reasoning,
        unconstrained=None if facts.samples_here else _UNCONSTRAINED,
    )
    return model, RuntimeTexts(end_markers, end_ids, tokenizer.token_bytes)
