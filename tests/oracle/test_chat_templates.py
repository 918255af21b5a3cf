"""Chat templates against transformers' own rendering, on constructs that published templates use."""

from typing import Any

import pytest

from npuserve.text.chat_template import CHATML, ChatTemplate

render_jinja_template = pytest.importorskip("transformers.utils.chat_template_utils").render_jinja_template

pytestmark = pytest.mark.oracle

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief & <kind>."},
    {"role": "user", "content": "  Größe?\n"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\n5 %"},
    {"role": "user", "content": "東京 😀"},
]
TEMPLATES = {
    "chatml": CHATML,
    "llama 3": """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "thoughts": """\
{% set ns = namespace(last=-1) %}
{% for message in messages[::-1] %}
    {% set index = (messages|length - 1) - loop.index0 %}
    {% if ns.last < 0 and message.role == "user" %}{% set ns.last = index %}{% endif %}
{% endfor %}
{% for message in messages %}
{% if message.role == "assistant" and '</think>' in message.content %}
{{ message.content.split('</think>')[-1].lstrip('\\n') }}
{% generation %}[{{ loop.index0 > ns.last }}]{% endgeneration %}
{% elif message.role == "system" %}
{% continue %}
{% else %}
{{ message.role }}: {{ message.content }}
{% endif %}
{% endfor %}
{% if enable_thinking is defined and enable_thinking is false %}
<think></think>
{% endif %}
""",
    "json": "{{ messages | tojson }}\n{{ messages[0] | tojson(indent=2) }}\n{{ {'b': 1, 'a': [true, none]} | tojson }}",
    "formats": "{{ '%02d|%s' % (3, 'x') }} {{ '-' * 5 }} {{ 2 ** 10 }} {{ 'a'.center(9) }} {{ messages | length }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("switches", [{}, {"enable_thinking": False}])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_renders_as_transformers_does(name: str, switches: dict[str, Any], add_generation_prompt: bool) -> None:
    source = TEMPLATES[name]
    ours = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(
        MESSAGES, switches=switches, add_generation_prompt=add_generation_prompt
    )
    theirs, _ = render_jinja_template(
        conversations=[MESSAGES],
        chat_template=source,
        add_generation_prompt=add_generation_prompt,
        bos_token="<s>",
        eos_token="</s>",
        **switches,
    )
    assert ours == theirs[0]
