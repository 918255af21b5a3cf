"""The matrices that stand in a device's memory, dequantized by their formats."""

import numpy as np
from numpy.typing import NDArray

from npuserve.program.dram import Matrix
from oracle.emulation import Array
from simulated_device import Simulated


def device_weights(simulated: Simulated) -> dict[str, Array]:
    """Matrices by tensor name, for families whose layers have q, k, v, o, gate, up and down.

    They are in the basis of the image; query rows lose the factor that the image gives them.
    """
    facts = simulated.dram.geometry.facts
    found: dict[str, Array] = {}
    for layer in range(facts.num_layers):
        found |= _layer(simulated, layer)
    found[facts.embedding if facts.tied_head else facts.head] = _read(
        simulated, 0, simulated.dram.head, facts.hidden_size
    )
    return found


def _layer(simulated: Simulated, layer: int) -> dict[str, Array]:
    dram, facts = simulated.dram, simulated.dram.geometry.facts
    base, layout, names = dram.layer_starts[layer], dram.kinds[facts.kind_of(layer)], facts.names
    heads, kv_heads = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    q, k, v = np.split(_read(simulated, base, layout.qkv, facts.hidden_size), [heads, heads + kv_heads])
    factor = 1.0 if facts.qk_norm else float(np.float32(np.log2(np.e) / np.sqrt(facts.head_dim)))
    gate, up = np.split(_read(simulated, base, layout.gate_up, facts.hidden_size), 2)
    o = _read(simulated, base, layout.o, heads)
    down = _read(simulated, base, layout.down, facts.intermediate_size)
    values = {names.q: q / factor, names.k: k, names.v: v, names.o: o, names.gate: gate, names.up: up, names.down: down}
    prefix = facts.layer_prefix.format(layer)
    return {f"{prefix}{name}.weight": matrix for name, matrix in values.items()}


def _read(simulated: Simulated, base: int, matrix: Matrix, columns: int) -> Array:
    kept = matrix.format
    rows = _memory(simulated, base + matrix.weights, matrix.n, matrix.row_stride)
    scales = _memory(simulated, base + matrix.scales, matrix.n, matrix.scale_stride).view(np.uint32)
    words = np.ascontiguousarray(scales[:, : kept.scale_words(matrix.blocks)])
    if kept.is_four_bit:
        return kept.unpack(rows, words, columns).astype(np.float64)
    return kept.unpack(rows.view(np.int8), words.view(np.float32), columns).astype(np.float64)


def _memory(simulated: Simulated, address: int, rows: int, stride: int) -> NDArray[np.uint8]:
    return simulated.link.read_dram(address, rows * stride).reshape(rows, stride).copy()
