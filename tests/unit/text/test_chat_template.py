import pytest

from npuserve.errors import CheckpointError, RequestError
from npuserve.text import chat_template
from npuserve.text.chat_template import ChatTemplate

HELLO = [{"role": "user", "content": "Hello"}]


def test_checkpoint_without_a_template_gets_chatml() -> None:
    assert ChatTemplate(None).render(HELLO) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


def test_whitespace_is_controlled_as_templates_expect() -> None:
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n"
    assert ChatTemplate(source).render(HELLO) == "Hello\n"


def test_tojson_keeps_unicode_and_html_characters() -> None:
    template = ChatTemplate("{{ messages[0].content | tojson }}")
    assert template.render([{"role": "user", "content": "<ü> & 'x'"}]) == "\"<ü> & 'x'\""


def test_generation_blocks_and_loop_controls_are_understood() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    assert ChatTemplate(source).render([*HELLO, *HELLO]) == "Hello"


def test_special_token_strings_and_switches_reach_the_template() -> None:
    template = ChatTemplate("{{ bos_token }}{% if enable_thinking %}think{% endif %}", {"bos_token": "<s>"})
    assert template.render(HELLO, switches={"enable_thinking": True}) == "<s>think"


def test_switches_are_the_names_that_the_template_reads() -> None:
    template = ChatTemplate("{{ messages }}{{ bos_token }}{{ xml_tools }}{{ strftime_now('%Y') }}")
    assert template.switches == {"xml_tools", "enable_thinking", "thinking", "reasoning_effort"}


def test_refusal_is_a_request_error_in_the_templates_words() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RequestError, match="refuses these messages: roles must alternate") as caught:
        template.render(HELLO)
    assert caught.value.param == "messages"


def test_failing_template_is_a_request_error_without_its_inner_text() -> None:
    with pytest.raises(RequestError, match=r"cannot render these messages \(ZeroDivisionError\)"):
        ChatTemplate("{{ 1 // 0 }}").render(HELLO)


@pytest.mark.parametrize("source", ["{% if %}", "{{ messages", "{% unknown %}"])
def test_template_that_does_not_compile_is_a_checkpoint_error(source: str) -> None:
    with pytest.raises(CheckpointError, match="chat template does not compile"):
        ChatTemplate(source)


DOUBLING = "{% set ns = namespace(x='x') %}{% for i in range(60) %}…{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 'x' * 1000000000 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ 'x'.ljust(10000000000) }}",
        "{{ 'x' | center(10000000000) }}",
        DOUBLING.replace("…", "{% set ns.x = ns.x + ns.x %}"),
        DOUBLING.replace("…", "{% set ns.x = ns.x ~ ns.x %}"),
        DOUBLING.replace("…", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
    ],
)
def test_hostile_template_ends_in_a_request_error(source: str) -> None:
    with pytest.raises(RequestError):
        ChatTemplate(source).render(list(HELLO))


LOOPS = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"
MACROS = "{% macro f(n) %}{% if n %}{% set a = f(n - 1) %}{% set b = f(n - 1) %}{% endif %}{% endmacro %}{{ f(90) }}"
OUTPUT = "{% for i in range(90000) %}{% for j in range(90000) %}{{ 'xxxxxxxxxxxxxxxx' * 64 }}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("source", [LOOPS, MACROS])
def test_template_that_runs_for_ever_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "_TIME_LIMIT_S", 0.05)
    with pytest.raises(RequestError, match="went over its limits on these messages: it ran too long"):
        ChatTemplate(source).render(HELLO)


def test_template_that_writes_without_end_is_stopped() -> None:
    with pytest.raises(RequestError, match="the prompt is longer than 33554432 characters"):
        ChatTemplate(OUTPUT).render(HELLO)
