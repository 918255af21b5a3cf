"""GET /props: what the served model is, as llama.cpp's server tells it."""

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response

from npuserve import __version__
from npuserve.server.json_reply import json_reply
from npuserve.server.state import ServerState


async def props(request: Request) -> Response:
    """Chat template, default sampling values, slots, facts of the model."""
    state: ServerState = request.app.state.server
    model = state.model
    num_slots = state.engine.stats().num_slots
    return json_reply(
        {
            "model_alias": model.name,
            "total_slots": num_slots,
            "default_generation_settings": {"n_ctx": model.context_length, "params": asdict(model.defaults)},
            "chat_template": model.template.source,
            "chat_template_switches": sorted(model.template.switches),
            "n_vocab": model.vocab_size,
            "end_token_ids": sorted(model.end_ids),
            "think": model.think,
            "modalities": {"vision": False, "audio": False},
            "backend": state.backend,
            "build_info": f"npuserve {__version__}",
        }
    )
