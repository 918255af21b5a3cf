"""JSON schemas of what requests hold, made from the same tables that check them."""

from collections.abc import Mapping
from typing import Any

from npuserve.server.fields import Integer, Kind, OfType, OneOf, Real
from npuserve.server.messages import MAX_MESSAGES, MAX_PARTS

Schema = dict[str, Any]
_TYPES = {bool: "boolean", str: "string", list: "array", dict: "object"}


def schema_of(kind: Kind) -> Schema:
    """What `kind` accepts."""
    match kind:
        case Real():
            low = "exclusiveMinimum" if kind.open_below else "minimum"
            return {"type": "number", low: kind.least, "maximum": kind.most}
        case Integer():
            most = {} if kind.most is None else {"maximum": kind.most}
            return {"type": "integer", "minimum": kind.least, **most}
        case OneOf():
            return {"type": "string", "enum": list(kind.words)}
        case OfType():
            return {"type": _TYPES[kind.type]}
        case _:
            raise TypeError(f"{kind} has no schema")


def optional(schema: Schema) -> Schema:
    """The same, or null, which is the same as absent."""
    return {"anyOf": [schema, {"type": "null"}]}


def any_of(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def array(items: Schema, least: int = 0, most: int | None = None) -> Schema:
    return {"type": "array", "items": items, "minItems": least} | ({} if most is None else {"maxItems": most})


def obj(required: Mapping[str, Schema], more: Mapping[str, Schema] | None = None) -> Schema:
    """An object with these members; others are accepted and ignored."""
    members = {**required, **{name: optional(schema) for name, schema in (more or {}).items()}}
    return {"type": "object", "properties": members, "required": list(required)}


def table(kinds: Mapping[str, Kind]) -> dict[str, Schema]:
    """The members that a table of fields checks."""
    return {name: schema_of(kind) for name, kind in kinds.items()}


STRING: Schema = {"type": "string"}
OBJECT: Schema = {"type": "object"}
BOOLEAN: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
_STOP: Schema = {"type": "string", "minLength": 1, "maxLength": 1024}
STOP = any_of(_STOP, array(_STOP, most=16))
TOKEN: Schema = {"type": "integer", "minimum": 0}
STOP_IDS = any_of(TOKEN, array(TOKEN, most=16))
LOGIT_BIAS: Schema = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]{1,10}$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
}
_TEXT_PART = obj({"type": {"enum": ["text", "input_text", "output_text"]}, "text": STRING})
_REFUSAL_PART = obj({"type": {"enum": ["refusal"]}, "refusal": STRING})
_CONTENT = any_of(STRING, array(any_of(_TEXT_PART, _REFUSAL_PART), most=MAX_PARTS))
_CALL = obj({"function": obj({"name": STRING}, {"arguments": any_of(STRING, OBJECT)})}, {"id": STRING})
MESSAGE = any_of(
    obj(
        {"role": {"enum": ["system", "developer", "user", "tool"]}, "content": _CONTENT},
        {"name": STRING, "tool_call_id": STRING},
    ),
    obj(
        {"role": {"enum": ["assistant"]}},
        {"content": _CONTENT, "name": STRING, "reasoning_content": STRING, "tool_calls": array(_CALL)},
    ),
)
MESSAGES = array(MESSAGE, 1, MAX_MESSAGES)
TOOLS = array(
    obj(
        {
            "function": obj(
                {"name": {"type": "string", "pattern": "^[A-Za-z0-9_.:/-]{1,128}$"}},
                {"description": STRING, "parameters": OBJECT, "strict": BOOLEAN},
            )
        },
        {"type": {"enum": ["function"]}},
    ),
    most=256,
)
TOOL_CHOICE = any_of(
    {"enum": ["none", "auto", "required"]},
    obj({"type": {"enum": ["function"]}, "function": obj({"name": STRING})}),
)
RESPONSE_FORMAT = any_of(
    obj({"type": {"enum": ["text", "json_object"]}}),
    obj({"type": {"enum": ["json_schema"]}, "json_schema": obj({"schema": OBJECT})}),
)
