"""A chat template with a system message of the server's own."""

from collections.abc import Mapping, Sequence
from typing import Any

from npuserve.text.chat_template import ChatTemplate


class SystemPromptTemplate(ChatTemplate):
    """Puts `system_prompt` in front of messages that have no system message."""

    def __init__(self, source: str | None, special_tokens: Mapping[str, str], system_prompt: str) -> None:
        super().__init__(source, special_tokens)
        self._system_prompt = system_prompt

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        switches: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """See `ChatTemplate.render`."""
        if not any(message["role"] == "system" for message in messages):
            messages = [{"role": "system", "content": self._system_prompt}, *messages]
        return super().render(messages, tools=tools, switches=switches, add_generation_prompt=add_generation_prompt)


def with_system_prompt(template: ChatTemplate, system_prompt: str) -> ChatTemplate:
    """`template` with that system message."""
    return SystemPromptTemplate(template.source, template.special_tokens, system_prompt)
