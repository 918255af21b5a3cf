"""The two kinds of networks, and what settings make of them."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from npuserve.errors import CheckpointError, ConfigError, DeviceError, DeviceUnavailableError, UnsupportedModelError
from npuserve.vision.classifier import Classifier
from npuserve.vision.detector import Detector
from npuserve.vision.loading import VisionSettings, load_vision, parse_channels, parse_size
from npuserve.vision.network import InputForm
from npuserve.vision.normalization import BYTES, BYTES_BGR, IMAGENET, UNIT, Normalization
from npuserve.vision.onnx_network import OnnxNetwork
from npuserve.vision.rknn_network import RknnNetwork


def onnx_file(path: Path, shape: list[int | str], kind: int = TensorProto.FLOAT) -> Path:
    """A network whose output is the mean of each channel."""
    axes = [2, 3] if shape[1] == 3 else [1, 2]
    nodes = [helper.make_node("Cast", ["image"], ["wide"], to=TensorProto.FLOAT)]
    nodes += [helper.make_node("ReduceMean", ["wide"], ["means"], axes=axes, keepdims=0)]
    graph = helper.make_graph(
        nodes,
        "means",
        [helper.make_tensor_value_info("image", kind, shape)],
        [helper.make_tensor_value_info("means", TensorProto.FLOAT, [None, 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize(
    ("shape", "kind", "form"),
    [
        ([1, 3, 32, 48], TensorProto.FLOAT, InputForm(32, 48, False)),
        ([1, 32, 48, 3], TensorProto.FLOAT, InputForm(32, 48, False, True)),
        (["n", 3, "h", "w"], TensorProto.FLOAT, InputForm(7, 9, False)),
        ([1, 3, 32, 48], TensorProto.FLOAT16, InputForm(32, 48, False)),
        ([1, 3, 32, 48], TensorProto.UINT8, InputForm(32, 48, True)),
        ([1, 32, 48, 3], TensorProto.UINT8, InputForm(32, 48, True, True)),
    ],
)
def test_onnx_inputs_of_each_form(shape: list[int | str], kind: int, form: InputForm, tmp_path: Path) -> None:
    network = OnnxNetwork(onnx_file(tmp_path / "m.onnx", shape, kind), (7, 9))
    assert network.form == form
    pixels = np.zeros((form.height, form.width, 3), dtype=np.uint8)
    pixels[:] = (10, 20, 30)
    (output,) = network.infer(BYTES.apply(pixels, form))
    assert output.tolist() == [[10.0, 20.0, 30.0]]
    assert network.name == "m.onnx"


def test_onnx_models_that_are_no_vision_models_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(CheckpointError, match="ONNX Runtime cannot load it"):
        OnnxNetwork(tmp_path / "bad.onnx", (8, 8))
    with pytest.raises(UnsupportedModelError, match="3 channels"):
        OnnxNetwork(onnx_file(tmp_path / "four.onnx", [1, 4, 8, 8]), (8, 8))
    with pytest.raises(UnsupportedModelError, match=r"type tensor\(int32\)"):
        OnnxNetwork(onnx_file(tmp_path / "int.onnx", [1, 3, 8, 8], TensorProto.INT32), (8, 8))


def test_a_failing_onnx_run_is_the_devices_fault(tmp_path: Path) -> None:
    network = OnnxNetwork(onnx_file(tmp_path / "m.onnx", [1, 3, 8, 8]), (8, 8))
    with pytest.raises(DeviceError, match="ONNX Runtime failed"):
        network.infer(np.zeros((1, 3, 9, 9), dtype=np.float32))


class FakeRknn:
    """Stands for rknnlite.api.RKNNLite; notes its calls."""

    load_code = init_code = 0
    output: ClassVar[list[Any] | None] = [np.ones((1, 5), dtype=np.float16)]
    knows_priority = True

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        FakeRknn.made = self  # type: ignore[attr-defined]

    def load_rknn(self, path: str) -> int:
        self.calls.append(("load", path))
        return self.load_code

    def init_runtime(self, **options: int) -> int:
        if "priority" in options and not self.knows_priority:
            raise TypeError("unexpected keyword argument 'priority'")
        self.calls.append(("init", options))
        return self.init_code

    def inference(self, inputs: list[Any], data_format: list[str]) -> list[Any] | None:
        self.calls.append(("infer", inputs[0].shape, inputs[0].dtype, data_format))
        if self.output is None:
            return None
        return self.output

    def release(self) -> None:
        self.calls.append(("release",))


@pytest.fixture
def rknn(monkeypatch: pytest.MonkeyPatch) -> type[FakeRknn]:
    made = type("Rknn", (FakeRknn,), {})
    package, api = ModuleType("rknnlite"), ModuleType("rknnlite.api")
    api.RKNNLite = made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rknnlite", package)
    monkeypatch.setitem(sys.modules, "rknnlite.api", api)
    return made


def test_rknn_runs_as_the_vendors_package_wants_it(rknn: type[FakeRknn]) -> None:
    network = RknnNetwork(Path("m.rknn"), (16, 24), core_mask="0_1", priority="low")
    (output,) = network.infer(np.zeros((1, 16, 24, 3), dtype=np.uint8))
    assert output.dtype == np.float32
    network.close()
    network.close()
    assert FakeRknn.made.calls == [  # type: ignore[attr-defined]
        ("load", "m.rknn"),
        ("init", {"core_mask": 3, "priority": 2}),
        ("infer", (1, 16, 24, 3), np.uint8, ["nhwc"]),
        ("release",),
    ]


def test_rknn_with_automatic_cores_gives_no_mask_and_old_packages_no_priority(rknn: type[FakeRknn]) -> None:
    rknn.knows_priority = False
    RknnNetwork(Path("m.rknn"), (16, 24))
    assert FakeRknn.made.calls[1] == ("init", {})  # type: ignore[attr-defined]


@pytest.mark.parametrize(("where", "error"), [("load_code", CheckpointError), ("init_code", DeviceUnavailableError)])
def test_rknn_faults_name_the_function_and_release(where: str, error: type[Exception], rknn: type[FakeRknn]) -> None:
    setattr(rknn, where, -6)
    with pytest.raises(error, match=r"returned -6; a \.rknn must be made for this chip"):
        RknnNetwork(Path("m.rknn"), (16, 24))
    assert FakeRknn.made.calls[-1] == ("release",)  # type: ignore[attr-defined]


def test_rknn_without_an_output_is_the_devices_fault(rknn: type[FakeRknn]) -> None:
    rknn.output = None
    with pytest.raises(DeviceError, match="gave no output"):
        RknnNetwork(Path("m.rknn"), (16, 24)).infer(np.zeros((1, 16, 24, 3), dtype=np.uint8))


def test_rknn_without_the_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rknnlite.api", None)
    with pytest.raises(DeviceUnavailableError, match="pip install rknn-toolkit-lite2"):
        RknnNetwork(Path("m.rknn"), (16, 24))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, IMAGENET),
        ({"task": "detect"}, UNIT),
        ({"task": "detect", "detector": "yolox"}, BYTES_BGR),
        (
            {"mean": (127.0, 127.0, 127.0), "deviation": (128.0, 128.0, 128.0)},
            Normalization((127.0,) * 3, (128.0,) * 3),
        ),
    ],
)
def test_what_an_onnx_model_is_given(
    settings: dict[str, Any], expected: Normalization, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Normalization] = []
    for kind in (Classifier, Detector):
        monkeypatch.setattr(f"npuserve.vision.loading.{kind.__name__}", lambda *given: seen.append(given[2]))
    load_vision(onnx_file(tmp_path / "m.onnx", [1, 3, 8, 8]), VisionSettings(**settings))
    assert seen == [expected]


def test_a_rknn_model_takes_the_size_from_the_settings(rknn: type[FakeRknn]) -> None:
    assert load_vision(Path("m.rknn"), VisionSettings()).network.form == InputForm(224, 224, True, True)
    detect = load_vision(Path("m.rknn"), VisionSettings(task="detect"))
    assert isinstance(detect, Detector)
    assert detect.network.form == InputForm(640, 640, True, True)
    assert load_vision(Path("m.rknn"), VisionSettings(input_size=(300, 400))).network.form.width == 400


def test_labels_that_were_asked_for_must_be_there(tmp_path: Path, rknn: type[FakeRknn]) -> None:
    load_vision(Path("m.rknn"), VisionSettings(labels=tmp_path / "none.txt"))
    with pytest.raises(ConfigError, match=r"set \[vision\] labels"):
        load_vision(Path("m.rknn"), VisionSettings(labels=tmp_path / "none.txt", labels_must_exist=True))


def test_another_ending_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"\.rknn or \.onnx"):
        load_vision(Path("m.tflite"), VisionSettings())


def test_sizes_and_channels() -> None:
    assert parse_size("auto") is None
    assert parse_size("224") == (224, 224)
    assert parse_size("640x480") == (480, 640)
    assert parse_channels("auto", "mean") is None
    assert parse_channels("127.5", "mean") == (127.5, 127.5, 127.5)
    assert parse_channels("1, 2,3", "mean") == (1.0, 2.0, 3.0)
    for text in ("0", "x", "224x", "1x2x3", "-5"):
        with pytest.raises(ConfigError, match="input_size"):
            parse_size(text)
    for text in ("a", "1,2", "nan", ""):
        with pytest.raises(ConfigError, match="mean"):
            parse_channels(text, "mean")
    with pytest.raises(ConfigError, match="std"):
        parse_channels("0", "std")


def test_missing_packages_are_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DeviceUnavailableError, match="pip install pillow python-multipart"):
        load_vision(Path("m.rknn"), VisionSettings())
