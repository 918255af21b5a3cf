"""GET /openapi.json: the interface, described from the tables that check requests and the types that replies are."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from npuserve import __version__
from npuserve.server.anthropic_input import MESSAGES_FIELDS
from npuserve.server.chat import CHAT_FIELDS
from npuserve.server.completions import COMPLETION_FIELDS
from npuserve.server.control_routes import ABORT_FIELDS
from npuserve.server.generate import GENERATE_FIELDS, SAMPLING_FIELDS
from npuserve.server.responses_input import RESPONSES_FIELDS
from npuserve.server.sampling import FIELDS
from npuserve.server.schema_parts import (
    BOOLEAN,
    LOGIT_BIAS,
    MESSAGES,
    NUMBER,
    OBJECT,
    RESPONSE_FORMAT,
    STOP,
    STOP_IDS,
    STRING,
    TOKEN,
    TOOL_CHOICE,
    TOOLS,
    Schema,
    any_of,
    array,
    obj,
    table,
)
from npuserve.server.state import ServerState
from npuserve.server.text_routes import DETOKENIZE_FIELDS, TEMPLATE_FIELDS, TOKENIZE_FIELDS
from npuserve.server.vision_fields import QUERIES
from npuserve.server.wire import ChatCompletion, Completion, ErrorBody, ModelCard, ModelList

_ABORT = table(ABORT_FIELDS)
_SWITCHES: dict[str, Schema] = {"chat_template_kwargs": OBJECT, "enable_thinking": BOOLEAN}
_SAMPLING = {**table(FIELDS), "stop": STOP, "stop_token_ids": STOP_IDS, "logit_bias": LOGIT_BIAS}
_ENFORCED = {"response_format": RESPONSE_FORMAT, "regex": STRING, "grammar": STRING, "choice": array(STRING, 1)}
_PROMPT = any_of(STRING, array(TOKEN, 1), array(STRING, 1, 128), array(array(TOKEN, 1), 1, 128))
_TEXT_BLOCKS = any_of(STRING, array(obj({"type": {"enum": ["text"]}, "text": STRING})))
_ERROR: Schema = {"$ref": "#/components/schemas/ErrorBody"}
_MESSAGES_ERROR = obj({"type": {"const": "error"}, "error": obj({"type": STRING, "message": STRING})})


def _without(members: Mapping[str, Schema], *names: str) -> dict[str, Schema]:
    return {name: schema for name, schema in members.items() if name not in names}


_BODIES: dict[str, Schema] = {
    "/v1/chat/completions": obj(
        {"messages": MESSAGES},
        {
            **table(CHAT_FIELDS),
            **_SAMPLING,
            **_ENFORCED,
            **_SWITCHES,
            "tools": TOOLS,
            "tool_choice": TOOL_CHOICE,
            "parallel_tool_calls": BOOLEAN,
            "reasoning_effort": {"enum": ["none", "minimal", "low", "medium", "high", "xhigh"]},
        },
    ),
    "/v1/completions": obj({"prompt": _PROMPT}, {**table(COMPLETION_FIELDS), **_SAMPLING, **_ENFORCED}),
    "/v1/responses": obj(
        {
            "input": any_of(
                STRING,
                array(obj({"role": {"enum": ["system", "developer", "user", "assistant"]}, "content": STRING}), 1),
            )
        },
        {
            **table(RESPONSES_FIELDS),
            "tools": array(obj({"type": {"enum": ["function"]}, "name": STRING}, {"parameters": OBJECT})),
            "text": obj({}, {"format": obj({"type": {"enum": ["text", "json_object"]}})}),
        },
    ),
    "/v1/messages": obj(
        {
            "max_tokens": {"type": "integer", "minimum": 1},
            "messages": array(
                obj({"role": {"enum": ["user", "assistant", "system"]}, "content": _TEXT_BLOCKS}), 1, 4096
            ),
        },
        {
            **_without(table(MESSAGES_FIELDS), "max_tokens"),
            "system": _TEXT_BLOCKS,
            "stop_sequences": array({"type": "string", "minLength": 1, "maxLength": 1024}, most=16),
            "tools": array(obj({"name": STRING, "input_schema": OBJECT}, {"description": STRING})),
            "tool_choice": any_of(
                obj({"type": {"enum": ["auto", "any", "none"]}}), obj({"type": {"enum": ["tool"]}, "name": STRING})
            ),
            "thinking": obj({"type": {"enum": ["enabled", "adaptive", "disabled"]}}),
        },
    ),
    "/generate": any_of(
        *(
            obj({name: prompt}, {**table(GENERATE_FIELDS), "sampling_params": obj({}, _SAMPLING_PARAMS)})
            for _SAMPLING_PARAMS in ({**table(SAMPLING_FIELDS), "stop": STOP, "stop_token_ids": STOP_IDS},)
            for name, prompt in (
                ("text", any_of(STRING, array(STRING, 1, 128))),
                ("input_ids", any_of(array(TOKEN, 1), array(array(TOKEN, 1), 1, 128))),
            )
        )
    ),
    "/tokenize": any_of(
        *(
            obj({name: given}, _without(table(TOKENIZE_FIELDS), "content", "prompt", "messages"))
            for name, given in (("content", STRING), ("prompt", STRING), ("messages", MESSAGES))
        )
    ),
    "/detokenize": obj({"tokens": array(TOKEN)}, _without(table(DETOKENIZE_FIELDS), "tokens")),
    "/apply-template": obj({"messages": MESSAGES}, {**_without(table(TEMPLATE_FIELDS), "messages"), **_SWITCHES}),
    "/abort_request": any_of(
        *(obj({name: {"type": "string", "minLength": 1}}, _without(_ABORT, name)) for name in ("rid", "request_id")),
        *(obj({name: {"const": True}}, _without(_ABORT, name)) for name in ("all", "abort_all")),
    ),
}
_BODIES["/v1/messages/count_tokens"] = {**_BODIES["/v1/messages"], "required": ["messages"]}

_MEMBERS: dict[str, Schema] = {
    "/tokenize": obj({"tokens": {"type": "array"}, "count": TOKEN, "max_model_len": TOKEN}),
    "/detokenize": obj({"content": STRING, "prompt": STRING}),
    "/apply-template": obj({"prompt": STRING}),
    "/abort_request": obj({"success": BOOLEAN, "aborted": TOKEN}),
    "/flush_cache": obj({"success": BOOLEAN, "message": STRING}),
    "/v1/messages/count_tokens": obj({"input_tokens": TOKEN}),
    "/v1/messages": obj({"id": STRING, "type": {"const": "message"}, "content": {"type": "array"}, "usage": OBJECT}),
    "/v1/responses": obj(
        {"id": STRING, "object": {"const": "response"}, "status": STRING, "output": {"type": "array"}}
    ),
    "/generate": any_of(
        obj({"text": STRING, "output_ids": array(TOKEN), "meta_info": OBJECT}),
        array(obj({"text": STRING, "output_ids": array(TOKEN), "meta_info": OBJECT})),
    ),
    "/health": obj({"status": {"enum": ["ok", "loading", "warming", "stalled", "stopping", "failed"]}}),
    "/v1/stats": obj({"model": STRING, "slots": {"type": "array"}, "running": TOKEN, "queued": TOKEN}),
    "/props": obj({"chat_template": STRING, "total_slots": TOKEN}),
    "/openapi.json": obj({"openapi": STRING}),
    "/v1/vision/classify": obj({"model": STRING, "inference_ms": NUMBER, "top": {"type": "array"}}),
    "/v1/vision/detect": obj({"model": STRING, "inference_ms": NUMBER, "objects": {"type": "array"}}),
}
_TYPES: dict[str, type] = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": Completion,
    "/v1/models": ModelList,
    "/v1/models/{name}": ModelCard,
}
_STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate")
_SUMMARIES = {
    "/v1/chat/completions": "One assistant turn (OpenAI)",
    "/v1/completions": "Continuations of prompts (OpenAI)",
    "/v1/responses": "One response, without memory (OpenAI Responses)",
    "/v1/messages": "One message (Anthropic)",
    "/v1/messages/count_tokens": "Length of a message's prompt (Anthropic)",
    "/generate": "Continuations of prompts (SGLang)",
    "/tokenize": "Text or chat to token ids",
    "/detokenize": "Token ids to text",
    "/apply-template": "Chat to prompt text",
    "/flush_cache": "Forget saved contexts",
    "/abort_request": "End requests of one's own",
    "/v1/models": "The models served",
    "/v1/models/{name}": "One model",
    "/v1/stats": "What runs and what it has cost",
    "/metrics": "Figures for Prometheus",
    "/health": "Whether requests are taken",
    "/props": "Facts of the model",
    "/openapi.json": "This document",
}
# Described where a command added them.
_VISION = {
    "/v1/vision/classify": "Classes of a picture (Kiln)",
    "/v1/vision/detect": "Objects in a picture (Kiln)",
}
_REFUSALS = {
    "400": "The request is wrong; `param` names the field",
    "401": "No key, or a wrong one",
    "403": "This Host or Origin may not ask",
    "405": "Another method is needed",
    "408": "The request took too long",
    "431": "The headers are too large",
    "500": "The server or its device failed",
    "503": "The queue is full, or the server is stopping; see Retry-After",
}


async def get_openapi(request: Request) -> Response:
    """The description of this version's interface."""
    state: ServerState = request.app.state.server
    return Response(_encoded(vision=not _VISION.keys().isdisjoint(state.routes)), media_type="application/json")


@cache
def _encoded(*, vision: bool) -> bytes:
    return msgspec.json.encode(description(vision=vision))


def description(*, vision: bool = False) -> dict[str, Any]:
    """The OpenAPI 3.1 document; with `vision`, of a server that has the routes for pictures."""
    pictures = {path: _vision_path(path) for path in _VISION} if vision else {}
    _, components = msgspec.json.schema_components(
        [*_TYPES.values(), ErrorBody], ref_template="#/components/schemas/{name}"
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "npuserve", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": {path: _path(path) for path in _SUMMARIES} | pictures,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        # Keys are asked for only where the server was given some.
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _path(path: str) -> dict[str, Any]:
    posts = path in _BODIES or path == "/flush_cache"
    operation: dict[str, Any] = {"summary": _SUMMARIES[path], "responses": _responses(path, posts=posts)}
    if path in _BODIES:
        content = {"application/json": {"schema": _BODIES[path]}}
        operation["requestBody"] = {"required": True, "content": content}
    parameters = _parameters(path)
    if parameters:
        operation["parameters"] = parameters
    return {"post" if posts else "get": operation}


def _vision_path(path: str) -> dict[str, Any]:
    form = obj({"file": {"type": "string", "contentMediaType": "application/octet-stream"}})
    body = {"required": True, "content": {"*/*": {}, "multipart/form-data": {"schema": form}}}
    parameters = [{"name": name, "in": "query", "schema": schema} for name, schema in table(QUERIES[path]).items()]
    summary, responses = _VISION[path], _responses(path, posts=True)
    return {"post": {"summary": summary, "parameters": parameters, "requestBody": body, "responses": responses}}


def _parameters(path: str) -> list[dict[str, Any]]:
    if path == "/flush_cache":
        seconds = {"type": "number", "minimum": 0, "maximum": 3600}
        return [
            {"name": "timeout", "in": "query", "schema": seconds},
            {"name": "tier", "in": "query", "schema": {"enum": ["slot", "ram", "disk"]}},
        ]
    if "{name}" in path:
        return [{"name": "name", "in": "path", "required": True, "schema": STRING}]
    return []


def _responses(path: str, *, posts: bool) -> dict[str, Any]:
    if path == "/metrics":
        content: dict[str, Any] = {"text/plain": {"schema": STRING}}
    elif path in _TYPES:
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{_TYPES[path].__name__}"}}}
    else:
        content = {"application/json": {"schema": _MEMBERS[path]}}
    if path in _STREAMED:
        content["text/event-stream"] = {}  # its events are described by the APIs that it follows
    error = _MESSAGES_ERROR if path.startswith("/v1/messages") else _ERROR
    statuses = dict(_REFUSALS)
    if path in _BODIES or path in _VISION:
        statuses["413"] = "The body is too large"
    if path == "/generate":
        statuses["409"] = "A request with this rid is running"
    if "{name}" in path:
        statuses["404"] = "There is no such model"
    told = {status: _told(text, error) for status, text in sorted(statuses.items())}
    if path == "/health":
        told["503"] = _told("Not now; `status` says why", _MEMBERS["/health"])
    return {"200": {"description": "Done", "content": content}, **told}


def _told(text: str, schema: Schema) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}
