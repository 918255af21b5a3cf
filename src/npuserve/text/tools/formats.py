"""The ways in which model families write calls, as facts, and which of them a chat template means."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from npuserve.text.tools.bodies import Body, JsonBody, WholeBody
from npuserve.text.tools.call import ToolCall
from npuserve.text.tools.parser import ToolParser
from npuserve.text.tools.tagged_calls import Schemas, tagged_calls
from npuserve.text.tools.written_calls import gemma_calls, python_calls, python_text


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls are written: `begin`, then each call in `call` with NAME and ARGUMENTS (JSON), `end`.

    `marks` are the templates' words that give the format away. `body` makes what reads a call, given the functions that
    may be called. `bare` calls need no `begin`. `delimiters` are further tags inside a call. Calls follow each other
    with `between`, None where only one can be made at a time. A family whose models write calls in a way that a grammar
    cannot hold to a schema has `inside`, which writes what they would put between the tags.
    """

    name: str
    marks: tuple[str, ...]
    begin: str
    call: str
    end: str
    body: Callable[[Schemas], Body]
    between: str | None = "\n"
    bare: bool = False
    delimiters: tuple[str, ...] = ()
    inside: Callable[[Sequence[ToolCall]], str] | None = None

    @property
    def tags(self) -> tuple[str, ...]:
        """Everything that must reach the parser, be it a control token or not."""
        return tuple(tag.strip() for tag in (self.begin, self.end, *self.delimiters) if tag)

    def parser(self, schemas: Schemas, *, parallel: bool) -> ToolParser:
        """A parser for one reply; `schemas` are those of the arguments of what may be called."""
        end = None if isinstance(self.body(schemas), WholeBody) else self.end.strip() or None
        return ToolParser((self.begin.strip(),), end, partial(self.body, schemas), bare=self.bare, parallel=parallel)

    def written(self, calls: Sequence[ToolCall]) -> str:
        """`calls` as the model would have written them, for templates that cannot."""
        if self.inside is not None:
            return f"{self.begin}{self.inside(calls)}{self.end}"
        between = "\n" if self.between is None else self.between
        return between.join(
            f"{self.begin}{self.call.replace('NAME', call.name, 1).replace('ARGUMENTS', call.arguments, 1)}{self.end}"
            for call in calls
        )


HERMES = ToolFormat(
    name="hermes",
    marks=("<tool_call>",),
    begin="<tool_call>\n",
    call='{"name": "NAME", "arguments": ARGUMENTS}',
    end="\n</tool_call>",
    body=lambda schemas: JsonBody(None),
)
LLAMA = ToolFormat(
    name="llama",
    marks=("<|python_tag|>",),
    begin="<|python_tag|>",
    call='{"name": "NAME", "parameters": ARGUMENTS}',
    end="",
    body=lambda schemas: JsonBody(frozenset(schemas)),
    between=None,
    bare=True,
)
LFM2 = ToolFormat(
    name="lfm2",
    marks=("<|tool_call_start|>", "<|tool_list_start|>"),
    begin="<|tool_call_start|>",
    call='[{"name": "NAME", "arguments": ARGUMENTS}]',
    end="<|tool_call_end|>",
    body=lambda schemas: WholeBody("<|tool_call_end|>", python_calls),
    inside=python_text,
)
FUNCTION_GEMMA = ToolFormat(
    name="functiongemma",
    marks=("<start_function_call>",),
    begin="<start_function_call>",
    call="call:NAMEARGUMENTS",
    end="<end_function_call>",
    body=lambda schemas: WholeBody("<end_function_call>", partial(gemma_calls, "<escape>")),
    between="",
    delimiters=("<escape>",),
)
GEMMA = ToolFormat(
    name="gemma",
    marks=("<|tool_call>",),
    begin="<|tool_call>",
    call="call:NAMEARGUMENTS",
    end="<tool_call|>",
    body=lambda schemas: WholeBody("<tool_call|>", partial(gemma_calls, '<|"|>')),
    between="",
    delimiters=('<|"|>',),
)
QWEN = ToolFormat(
    name="qwen",
    marks=("<function=",),
    begin="<tool_call>\n",
    call=HERMES.call,
    end="\n</tool_call>",
    body=lambda schemas: WholeBody("</tool_call>", partial(tagged_calls, schemas)),
)
FORMATS = (LFM2, GEMMA, FUNCTION_GEMMA, LLAMA, QWEN, HERMES)


def format_of(template_source: str) -> ToolFormat:
    """The format that a chat template speaks of; Hermes' where it speaks of none."""
    return next((form for form in FORMATS if any(mark in template_source for mark in form.marks)), HERMES)
