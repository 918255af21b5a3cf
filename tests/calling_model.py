"""A scripted model that calls a tool when asked for the weather, for the tests of several APIs."""

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
# Just enough of a template to show what reached it; the comment gives the call format away.
TEMPLATE = """\
{%- if tools %}TOOLS {{ tools | tojson }} {% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }} {{ message.content }}
{%- for call in message.tool_calls or [] %} CALLED {{ call.function.name }}{% endfor -%}
{%- if message.role == 'tool' %} RESULT OF {{ message.tool_call_id }}{% endif -%}
<|im_end|>
{% endfor -%}
<|im_start|>assistant
{# <tool_call> #}"""
REPLIES: dict[str, str | list[int]] = {
    "RESULT OF": "It is sunny.",
    "weather": "Let me see. " + CALL,
    "": "Paris it is.",
}
