"""POST /v1/vision/classify and /v1/vision/detect: Kiln's routes for pictures."""

from collections.abc import AsyncIterator, Mapping

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import Response

from npuserve.errors import RequestError
from npuserve.server.body import read_bytes
from npuserve.server.errors import HttpError
from npuserve.server.fields import Integer
from npuserve.server.json_reply import json_reply
from npuserve.server.state import Handler
from npuserve.server.vision_fields import SHARE, TOP_N
from npuserve.server.vision_service import VisionService
from npuserve.vision.picture import MAX_BYTES


def vision_routes(vision: VisionService | None) -> Mapping[str, Mapping[str, Handler]]:
    """The two routes over `vision`; what it cannot do answers 503."""

    async def classify(request: Request) -> Response:
        top_n = _integer(request, "top_n", TOP_N)
        if vision is None or vision.classifier is None:
            raise _missing("classifier", "classify")
        image = await _image(request)
        found = await vision.classify(vision.classifier, image, vision.top_n if top_n is None else top_n)
        top = [{"index": item.class_id, "label": item.label, "score": item.score} for item in found.top]
        return json_reply({"model": vision.name, "inference_ms": round(found.inference_ms, 3), "top": top})

    async def detect(request: Request) -> Response:
        threshold, most_overlap = _real(request, "conf"), _real(request, "iou")
        if vision is None or vision.detector is None:
            raise _missing("detector", "detect")
        image = await _image(request)
        found = await vision.detect(
            vision.detector,
            image,
            vision.threshold if threshold is None else threshold,
            vision.most_overlap if most_overlap is None else most_overlap,
        )
        objects = [item._asdict() for item in found.objects]
        return json_reply({"model": vision.name, "inference_ms": round(found.inference_ms, 3), "objects": objects})

    return {"/v1/vision/classify": {"POST": classify}, "/v1/vision/detect": {"POST": detect}}


def _missing(part: str, task: str) -> HttpError:
    message = f"no {part} is loaded; set [vision] model and task = {task} in the server's configuration"
    return HttpError(503, message, code="model_not_loaded")


async def _image(request: Request) -> bytes:
    """The body, or the multipart field `file` in it. Raises RequestError, HttpError."""
    body = await read_bytes(request)
    if request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        body = await _file_field(request, body)
    if len(body) > MAX_BYTES:
        raise HttpError(
            413, f"the image has {len(body)} bytes; at most {MAX_BYTES} are taken", code="request_too_large"
        )
    return body


async def _file_field(request: Request, body: bytes) -> bytes:
    async def stream() -> AsyncIterator[bytes]:
        yield body
        yield b""

    parser = MultiPartParser(request.headers, stream(), max_files=1, max_fields=16)  # type: ignore[arg-type]
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError, UnicodeDecodeError) as error:
        raise RequestError("the multipart body is damaged or has more than one file", param="file") from error
    try:
        part = form.get("file")
        if isinstance(part, UploadFile):
            return await part.read()
    finally:
        await form.close()
    raise RequestError("the multipart body has no file in a field named file", param="file", code="missing_field")


def _integer(request: Request, name: str, kind: Integer) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and kind.matches(int(text))):
        raise RequestError(f"{name} must be {kind.accepts}, not '{text[:40]}'", param=name)
    return int(text)


def _real(request: Request, name: str) -> float | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not SHARE.matches(value):
        raise RequestError(f"{name} must be {SHARE.accepts}, not '{text[:40]}'", param=name)
    return value
