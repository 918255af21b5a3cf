"""The vision routes over HTTP, on ONNX Runtime."""

import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from kiln.fake_runtime import words, write_model
from kiln.kiln_server import kiln_in_process, write_config
from kiln.onnx_models import color_classifier, constant_detector
from live_server import Served

SIZE = 64
CELLS = (SIZE // 8) ** 2 + (SIZE // 16) ** 2 + (SIZE // 32) ** 2


def picture(color: str, size: tuple[int, int] = (80, 60), form: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, form)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A vision-only server that tells colours."""
    folder = tmp_path_factory.mktemp("vision")
    (folder / "labels.txt").write_text("red\ngreen\nblue\n")
    model = color_classifier(folder / "colors.onnx")
    config = write_config(folder / "config.ini", vision={"model": model, "labels": folder / "labels.txt", "top_n": 2})
    with kiln_in_process(config) as served:
        yield served


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A vision-only server that sees the same two objects and a double in everything."""
    folder = tmp_path_factory.mktemp("vision")
    rows = np.zeros((1, CELLS, 4 + 2), dtype=np.float32)
    rows[0, 0] = (32, 32, 20, 10, 0.9, 0)
    rows[0, 1] = (33, 32, 20, 10, 0.8, 0)
    rows[0, 2] = (10, 30, 8, 8, 0, 0.3)
    model = constant_detector(folder / "yolov8n.onnx", rows.transpose(0, 2, 1), SIZE)
    (folder / "labels.txt").write_text("person\ncat")
    vision = {"model": model, "labels": folder / "labels.txt", "task": "detect"}
    with kiln_in_process(write_config(folder / "config.ini", vision=vision)) as served:
        yield served


def classify(served: Served, content: bytes, query: str = "") -> httpx.Response:
    return httpx.post(f"{served.url}/v1/vision/classify{query}", content=content, timeout=60)


def test_a_raw_body_is_classified(classifier: Served) -> None:
    reply = classify(classifier, picture("blue")).json()
    assert reply["model"] == "colors.onnx"
    assert reply["inference_ms"] >= 0
    assert [set(item) for item in reply["top"]] == [{"index", "label", "score"}] * 2
    assert (reply["top"][0]["index"], reply["top"][0]["label"]) == (2, "blue")
    assert reply["top"][0]["score"] > reply["top"][1]["score"]


@pytest.mark.parametrize("field", ["file", "image"])
def test_a_multipart_body_is_classified_from_its_field_file(classifier: Served, field: str) -> None:
    files = {field: ("x.jpg", picture("red", form="JPEG"), "image/jpeg")}
    reply = httpx.post(f"{classifier.url}/v1/vision/classify", files=files, timeout=60)
    if field == "file":
        assert reply.json()["top"][0]["label"] == "red"
    else:
        assert reply.status_code == 400
        assert "a field named file" in reply.json()["error"]["message"]


def test_top_n_counts_the_classes(classifier: Served) -> None:
    assert len(classify(classifier, picture("green"), "?top_n=1").json()["top"]) == 1
    assert len(classify(classifier, picture("green"), "?top_n=1000").json()["top"]) == 3


@pytest.mark.parametrize("value", ["0", "-1", "1001", "x", "", "1.5", "9" * 50, "%C2%B2"])
def test_a_wrong_top_n_is_a_400(classifier: Served, value: str) -> None:
    reply = classify(classifier, picture("green"), f"?top_n={value}")
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "top_n"


@pytest.mark.parametrize("content", [b"", b"hello", picture("red")[:50], b"\xff\xd8\xff\xe0" + b"\0" * 100])
def test_a_bad_image_is_a_400(classifier: Served, content: bytes) -> None:
    reply = classify(classifier, content)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "invalid_image"


def test_a_damaged_multipart_body_is_a_400(classifier: Served) -> None:
    for content_type in ("multipart/form-data; boundary=x", "multipart/form-data"):
        headers = {"content-type": content_type}
        reply = httpx.post(f"{classifier.url}/v1/vision/classify", content=b"--y\r\nzz", headers=headers, timeout=60)
        assert reply.status_code == 400


def test_an_image_of_too_many_bytes_is_a_413(classifier: Served) -> None:
    assert classify(classifier, picture("red") + b"\0" * (20 << 20)).status_code == 413


def test_a_server_with_vision_only_answers_503_to_everything_about_text(classifier: Served) -> None:
    for path, body in {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
        "/v1/completions": {"prompt": "x"},
        "/tokenize": {"content": "x"},
        "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5},
    }.items():
        reply = httpx.post(f"{classifier.url}{path}", json=body)
        assert reply.status_code == 503, path
        assert "vision only" in reply.text
    assert httpx.get(f"{classifier.url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{classifier.url}/v1/models").json() == {"object": "list", "data": []}
    assert httpx.get(f"{classifier.url}/v1/stats").status_code == 200
    assert httpx.get(f"{classifier.url}/metrics").status_code == 200
    detect = httpx.post(f"{classifier.url}/v1/vision/detect", content=picture("red"))
    assert detect.status_code == 503
    assert "no detector is loaded" in detect.text


def test_objects_are_told_in_pixels_of_the_picture(detector: Served) -> None:
    reply = httpx.post(f"{detector.url}/v1/vision/detect", content=picture("white", (128, 64)), timeout=60).json()
    assert reply["model"] == "yolov8n.onnx"
    # The picture is halved, with 16 rows of grey above.
    assert [(item["class_id"], item["label"]) for item in reply["objects"]] == [(0, "person"), (1, "cat")]
    assert reply["objects"][0]["box"] == pytest.approx([44.0, 22.0, 84.0, 42.0])
    assert reply["objects"][1]["box"] == pytest.approx([12.0, 20.0, 28.0, 36.0])
    assert reply["objects"][0]["score"] == pytest.approx(0.9)


def test_conf_and_iou_of_a_request(detector: Served) -> None:
    def found(query: str) -> Any:
        return httpx.post(f"{detector.url}/v1/vision/detect?{query}", content=picture("white"), timeout=60).json()

    assert len(found("conf=0.5")["objects"]) == 1
    assert len(found("conf=0.5&iou=1")["objects"]) == 2
    for query in ("conf=2", "conf=-0.1", "iou=x", "iou=nan"):
        assert found(query)["error"]["param"] == query[: query.index("=")]


def test_pictures_wait_for_each_other_and_all_are_answered(classifier: Served) -> None:
    colors = ["red", "green", "blue"] * 8
    with ThreadPoolExecutor(12) as pool:
        labels = list(pool.map(lambda c: classify(classifier, picture(c)).json()["top"][0]["label"], colors))
    assert labels == colors


def test_a_picture_is_judged_while_the_language_model_talks(runtime_of: Callable[[str], Path], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    llm = {"model": write_model(tmp_path / "m.rkllm", words("a b"), hold_after=1, gate=gate)}
    llm |= {"library": runtime_of("1.3")}
    config = write_config(tmp_path / "config.ini", llm=llm, vision={"model": color_classifier(tmp_path / "c.onnx")})
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with ExitStack() as stack:
        served = stack.enter_context(kiln_in_process(config))
        stream = stack.enter_context(httpx.stream("POST", f"{served.url}/v1/chat/completions", json=body, timeout=60))
        lines = stream.iter_lines()
        assert next(lines).startswith("data:")
        assert classify(served, picture("green")).json()["top"][0]["index"] == 1
        assert httpx.get(f"{served.url}/v1/stats").json()["running"] == 1
        gate.touch()
        assert list(lines)[-2] == "data: [DONE]"


def test_a_vision_model_that_does_not_load_leaves_the_language_model(
    runtime_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    llm = {"model": write_model(tmp_path / "m.rkllm", words("all is well")), "library": runtime_of("1.3")}
    config = write_config(tmp_path / "config.ini", llm=llm, vision={"model": tmp_path / "bad.onnx"})
    with kiln_in_process(config) as served:
        assert classify(served, picture("red")).status_code == 503
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        assert httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=60).status_code == 200
    assert "bad.onnx: ONNX Runtime cannot load it" in capsys.readouterr().err


def test_openapi_describes_the_vision_routes(classifier: Served) -> None:
    paths = httpx.get(f"{classifier.url}/openapi.json").json()["paths"]
    assert [item["name"] for item in paths["/v1/vision/classify"]["post"]["parameters"]] == ["top_n"]
    assert [item["name"] for item in paths["/v1/vision/detect"]["post"]["parameters"]] == ["conf", "iou"]
