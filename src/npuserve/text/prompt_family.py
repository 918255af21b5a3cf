"""How models are prompted whose chat template is locked up in the runtime: by family, told from the file's name."""

import re
from dataclasses import dataclass

from npuserve.errors import ConfigError
from npuserve.text.chat_template import CHATML


@dataclass(frozen=True, slots=True)
class PromptFamily:
    """One prompt format: its template, and what ends a turn, as ids and as text.

    `markers` are the control tokens of the format. No template writes a beginning-of-text token: the runtime does.
    """

    name: str
    pattern: str
    template: str
    markers: tuple[str, ...]
    end_markers: tuple[str, ...]
    end_ids: frozenset[int] = frozenset()


_CHATML_MARKERS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_CHATML_ENDS = ("<|im_end|>", "<|endoftext|>")
_QWEN_END_IDS = frozenset({151643, 151645})
# A closed, empty thought keeps Qwen3 from thinking, as in its own template.
_QWEN3 = CHATML.removesuffix("{%- endif -%}\n") + (
    "{%- if enable_thinking is defined and not enable_thinking -%}\n"
    "{{ '<think>\\n\\n</think>\\n\\n' }}\n{%- endif -%}\n{%- endif -%}\n"
)
_LLAMA3 = """\
{%- for message in messages -%}
{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif -%}
"""
_GEMMA = """\
{%- set found = namespace(system='') -%}
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}
{%- set found.system = message['content'] + '\\n\\n' -%}
{%- else -%}
{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else 'user') + '\\n' }}
{{- found.system + message['content'] | trim + '<end_of_turn>\\n' -}}
{%- set found.system = '' -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<start_of_turn>model\\n' }}
{%- endif -%}
"""
_PHI3 = """\
{%- for message in messages -%}
{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|assistant|>\\n' }}
{%- endif -%}
"""
_ZEPHYR = _PHI3.replace("<|end|>", "</s>")
_DEEPSEEK = """\
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}
{{ message['content'] }}
{%- elif message['role'] == 'assistant' -%}
{{ '<｜Assistant｜>' + message['content'] + '<｜end▁of▁sentence｜>' }}
{%- else -%}
{{ '<｜User｜>' + message['content'] }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<｜Assistant｜>' }}
{%- endif -%}
"""

# The first whose pattern is found in the file's name; the last fits every name.
FAMILIES = (
    PromptFamily(
        "deepseek",
        r"deepseek",
        _DEEPSEEK,
        ("<｜User｜>", "<｜Assistant｜>", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        ("<｜end▁of▁sentence｜>",),
        frozenset({151643}),
    ),
    PromptFamily(
        "llama3",
        r"llama[-_. ]?3",
        _LLAMA3,
        (
            "<|begin_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
            "<|end_of_text|>",
            "<|eom_id|>",
        ),
        ("<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"),
        frozenset({128001, 128008, 128009}),
    ),
    PromptFamily(
        "gemma",
        r"gemma",
        _GEMMA,
        ("<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>"),
        ("<end_of_turn>", "<eos>"),
        frozenset({1, 106, 107}),
    ),
    PromptFamily(
        "phi3",
        r"phi[-_. ]?[34]",
        _PHI3,
        ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"),
        ("<|end|>", "<|endoftext|>"),
        frozenset({32000, 32007}),
    ),
    PromptFamily(
        "zephyr",
        r"tinyllama|zephyr",
        _ZEPHYR,
        ("<|system|>", "<|user|>", "<|assistant|>", "<s>", "</s>"),
        ("</s>",),
        frozenset({2}),
    ),
    PromptFamily("qwen3", r"qwen[-_. ]?3", _QWEN3, _CHATML_MARKERS, _CHATML_ENDS, _QWEN_END_IDS),
    PromptFamily("qwen", r"qwen", CHATML, _CHATML_MARKERS, _CHATML_ENDS, _QWEN_END_IDS),
    PromptFamily("chatml", r"", CHATML, _CHATML_MARKERS, _CHATML_ENDS),
)


def prompt_family(file_name: str, configured: str = "auto") -> PromptFamily:
    """The family `configured` by name, or for auto the one that `file_name` speaks of. Raises ConfigError."""
    if configured == "auto":
        return next(family for family in FAMILIES if re.search(family.pattern, file_name, re.IGNORECASE))
    for family in FAMILIES:
        if family.name == configured:
            return family
    known = ", ".join(["auto", *(family.name for family in FAMILIES)])
    raise ConfigError(f"[llm] family = {configured} is not one of {known}")
