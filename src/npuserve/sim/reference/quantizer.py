"""The quantizer's instructions: QACT into ACT RAM, QST into DRAM."""

import numpy as np

from npuserve.sim.arithmetic import Quantized, Words, mul, quantize
from npuserve.sim.reference.state import Operands, State


def quantize_activations(state: State, operands: Operands) -> None:
    """ACT[r][(ab+k)*D + i] and its scales from TMEM rows, after row factors and then column factors."""
    config, rows, kb, ab = state.config, operands["rows"], operands["kb"], operands["ab"]
    state.require_range("rows", rows, config.act_rows)
    state.require(kb > 0, "kb is 0")
    state.require(ab + kb <= config.act_blocks, f"blocks {ab}..{ab + kb - 1} of {config.act_blocks} ACT blocks")
    if operands["dup"]:
        state.require(2 * rows <= config.mcols, f"DUP takes {config.mcols // 2} rows, not {rows}")
    width = kb * config.depth
    values = state.tmem[state.tmem_grid(operands["src"], rows, operands["srs"], width)]
    if operands["use_rscale"]:
        values = mul(values, state.tmem[state.tmem_grid(operands["rscale"], rows, 1)])
    if operands["use_cscale"]:
        values = mul(values, state.tmem[state.tmem_grid(operands["cscale"], 1, 0, width)])
    codes, scales = _quantize_blocks(values, kb, bool(operands["row_scale"]))
    for first in (0, rows) if operands["dup"] else (0,):
        state.act[first : first + rows, ab : ab + kb] = codes
        state.act_scales[first : first + rows, ab : ab + kb] = scales


def quantize_store(state: State, operands: Operands) -> None:
    """Bytes to dst + r*drs + c*es and scale words to sdst, which must not lie on bytes written."""
    rows, kb, whole_row = operands["rows"], operands["kb"], bool(operands["row_scale"])
    state.require(rows > 0 and kb > 0, f"{rows} rows of {kb} blocks, but both must be 1 or more")
    state.require(whole_row or not operands["half"], "HALF needs ROW")
    width = kb * state.config.depth
    codes, scales = _quantize_blocks(
        state.tmem[state.tmem_grid(operands["src"], rows, operands["srs"], width)], kb, whole_row
    )
    written = width // 2 if operands["half"] else width
    targets = state.dram_grid(operands["dst"], rows, operands["drs"], written, operands["es"])
    scales_per_row = 1 if whole_row else kb
    scale_targets = state.dram_grid(operands["sdst"], rows, 4 * scales_per_row, scales_per_row, 4)
    state.require(
        not np.intersect1d(targets, state.word_bytes(scale_targets)).size, "elements and scales overlap in DRAM"
    )
    state.write_bytes(targets, codes.reshape(rows, width)[:, :written].view(np.uint8))
    state.write_words(scale_targets, scales[:, :scales_per_row])


def _quantize_blocks(values: Words, kb: int, whole_row: bool) -> Quantized:
    """Codes [rows, kb, D] and scales [rows, kb] of values [rows, kb*D]; a row scale is repeated for each block."""
    rows = values.shape[0]
    groups = values.reshape(rows, 1 if whole_row else kb, -1)
    codes, scales = quantize(groups)
    return Quantized(codes.reshape(rows, kb, -1), np.broadcast_to(scales, (rows, kb)))
