"""Messages to prompt text, by the checkpoint's own Jinja template."""

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.meta

from npuserve.errors import CheckpointError, RequestError
from npuserve.text.template_sandbox import TemplateLimitError, TemplateRefusal, TemplateSandbox

# The format of checkpoints that carry no template of their own (OpenAI's ChatML).
CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""

_MAX_SOURCE_CHARACTERS = 1 << 20
_MAX_PROMPT_CHARACTERS = 1 << 25  # a request's body is no longer either
_TIME_LIMIT_S = 5.0

# Given by the server or the checkpoint; a request's chat_template_kwargs may not replace them.
RESERVED_NAMES = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "chat_template",
        "return_dict",
        "return_tensors",
        "padding",
        "truncation",
        "max_length",
        "bos_token",
        "eos_token",
        "pad_token",
        "unk_token",
        "raise_exception",
        "strftime_now",
    }
)
# Switches that any template may be given; one that does not know them ignores them.
COMMON_SWITCHES = frozenset({"enable_thinking", "thinking", "reasoning_effort"})


class ChatTemplate:
    """A compiled chat template.

    It `takes_tools` when it reads their list, `writes_calls` when it knows the calls of earlier messages, and
    `takes_results` when it has a form for messages of the role tool.
    `special_tokens` are the strings that templates know as bos_token, eos_token and so on. Raises CheckpointError
    when `source` does not compile. The template runs in Jinja's immutable sandbox with bounded time and output.
    """

    def __init__(self, source: str | None, special_tokens: Mapping[str, str] | None = None) -> None:
        self.source = CHATML if source is None else source
        self.special_tokens = dict(special_tokens or {})
        if len(self.source) > _MAX_SOURCE_CHARACTERS:
            raise CheckpointError(
                f"the chat template has {len(self.source)} characters; at most {_MAX_SOURCE_CHARACTERS} are taken"
            )
        self._sandbox = sandbox = TemplateSandbox()
        try:
            self._template = sandbox.from_string(self.source)
            declared = jinja2.meta.find_undeclared_variables(sandbox.parse(self.source))
        except (jinja2.TemplateError, RecursionError) as error:
            raise CheckpointError(f"the checkpoint's chat template does not compile: {error}") from error
        self.takes_tools = "tools" in declared
        self.writes_calls = "tool_calls" in self.source
        self.takes_results = "'tool'" in self.source or '"tool"' in self.source
        self.switches = frozenset(declared - RESERVED_NAMES - set(sandbox.globals)) | COMMON_SWITCHES

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        switches: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt for `messages`, ending where the assistant's turn begins.

        Raises RequestError with the template's own words when it refuses the messages, or without them when it
        fails on them or takes too long.
        """
        values = {
            **self.special_tokens,
            **(switches or {}),
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._bounded(values)
        except TemplateRefusal as refusal:
            raise RequestError(
                f"the model's chat template refuses these messages: {refusal}", param="messages"
            ) from None
        except TemplateLimitError as error:
            raise RequestError(
                f"the model's chat template went over its limits on these messages: {error}; shorten them",
                param="messages",
            ) from error
        except Exception as error:  # the template is the checkpoint's code: it may fail in any way
            raise RequestError(
                f"the model's chat template cannot render these messages ({type(error).__name__}); check the order of"
                " roles and the fields of each message",
                param="messages",
            ) from error

    def _bounded(self, values: Mapping[str, Any]) -> str:
        self._sandbox.start_clock(_TIME_LIMIT_S)
        pieces: list[str] = []
        size = 0
        for piece in self._template.generate(**values):
            size += len(piece)
            if size > _MAX_PROMPT_CHARACTERS:
                raise TemplateLimitError(f"the prompt is longer than {_MAX_PROMPT_CHARACTERS} characters")
            pieces.append(piece)
        return "".join(pieces)
