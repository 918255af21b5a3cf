"""What a Kiln board answers otherwise than the common server."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from npuserve.errors import RequestError
from npuserve.server.errors import HttpError
from npuserve.server.json_reply import json_reply
from npuserve.server.state import Handler, ServedModel, ServerState
from npuserve.text.chat_template import ChatTemplate
from npuserve.text.runtime_tokenizer import RuntimeTokenizer

# Routes that a server without a language model has all the same.
_WITHOUT_MODEL = frozenset(
    {"/v1/stats", "/metrics", "/health", "/v1/models", "/v1/models/{name:path}", "/openapi.json"}
)


def model_routes(names: Callable[[], Sequence[str]]) -> Mapping[str, Mapping[str, Handler]]:
    """/v1/models over `names`, the models in the folder of the one that is loaded."""
    created = int(time.time())

    def card(request: Request, name: str) -> dict[str, Any]:
        state: ServerState = request.app.state.server
        made: dict[str, Any] = {"id": name, "object": "model", "created": created, "owned_by": "kiln"}
        if name == state.model.name:
            made |= {"max_model_len": state.model.context_length}
        return made

    async def list_models(request: Request) -> Response:
        return json_reply({"object": "list", "data": [card(request, name) for name in names()]})

    async def get_model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in names():
            raise HttpError(404, f"there is no model '{name[:100]}' here", code="model_not_found")
        return json_reply(card(request, name))

    return {"/v1/models": {"GET": list_models}, "/v1/models/{name:path}": {"GET": get_model}}


def routes_without_tokenizer() -> Mapping[str, Mapping[str, Handler]]:
    """Refusals of the routes that would tell token ids, which only the runtime knows."""

    async def refuse(request: Request) -> Response:
        message = (
            "the NPU's runtime keeps its tokenizer to itself; put the model's tokenizer.json beside the .rkllm or set"
            " [llm] tokenizer"
        )
        raise RequestError(message, code="unsupported")

    return {path: {"POST": refuse} for path in ("/tokenize", "/detokenize")}


def routes_without_model(common: Mapping[str, Mapping[str, Handler]]) -> Mapping[str, Mapping[str, Handler]]:
    """503 from every one of the `common` routes that needs a language model."""

    async def refuse(request: Request) -> Response:
        raise HttpError(503, "no language model is loaded here; this server does vision only", code="model_not_loaded")

    return {path: dict.fromkeys(handlers, refuse) for path, handlers in common.items() if path not in _WITHOUT_MODEL}


def no_model() -> ServedModel:
    """What stands in the place of a language model."""
    return ServedModel(
        name="", tokenizer=RuntimeTokenizer(()), template=ChatTemplate(None), context_length=1, vocab_size=1
    )
