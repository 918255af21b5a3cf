"""Small ONNX files that behave as told."""

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper


def _saved(path: Path, nodes: list[onnx.NodeProto], output_shape: list[int], size: int) -> Path:
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, size, size])
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, output_shape)
    graph = helper.make_graph(nodes, "made", [image], [output])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    return path


def color_classifier(path: Path, size: int = 32) -> Path:
    """Three classes: how red, green and blue a picture is."""
    return _saved(path, [helper.make_node("ReduceMean", ["image"], ["output"], axes=[2, 3], keepdims=0)], [1, 3], size)


def constant_detector(path: Path, rows: NDArray[np.float32], size: int) -> Path:
    """Always gives `rows` [1, n, values], be the picture what it may."""
    value = helper.make_node("Constant", [], ["rows"], value=numpy_helper.from_array(rows, "rows"))
    zero = helper.make_node("Constant", [], ["zero"], value=numpy_helper.from_array(np.zeros(1, np.float32), "zero"))
    nodes = [value, zero, helper.make_node("ReduceMean", ["image"], ["mean"], keepdims=0)]
    nodes += [
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Add", ["rows", "nothing"], ["output"]),
    ]
    return _saved(path, nodes, list(rows.shape), size)
