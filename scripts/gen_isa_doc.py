"""Write docs/isa.md from the instruction table; with --check only say whether it is up to date (exit code 1)."""

import argparse
import sys
from pathlib import Path

from isa_doc_text import ARITHMETIC, ENCODING, ERRORS, INTRODUCTION, MACHINE, NOTES

from npuserve.isa.fields import Bits, Operand
from npuserve.isa.machine import MACHINES
from npuserve.isa.spec import OPERATIONS, Operation, VectorFunction
from npuserve.sim.arithmetic import EXP2_COEFFICIENTS, LOG2_COEFFICIENTS

PAGE = Path(__file__).parents[1] / "docs" / "isa.md"
FUNCTIONS = {
    VectorFunction.ADD: "A + B",
    VectorFunction.SUB: "A - B",
    VectorFunction.RSUB: "B - A",
    VectorFunction.MUL: "A * B",
    VectorFunction.MAX: "the larger in the total order",
    VectorFunction.MIN: "the smaller in the total order",
    VectorFunction.OUTER: "S * decay(c) + B(r) * C(c), two rounded products and a rounded sum",
    VectorFunction.COPY: "flush(A)",
    VectorFunction.EXP2: "2^A",
    VectorFunction.RECIP: "1 / A",
    VectorFunction.RSQRT: "1 / sqrt(A)",
    VectorFunction.ABS: "|A|",
    VectorFunction.FILL: "flush(B), A unread",
    VectorFunction.EXP2SUB: "exp2(A - B), the difference rounded first",
    VectorFunction.LOG2: "log2(A)",
    VectorFunction.RSUM: "isum_64 of the row",
    VectorFunction.RMAX: "largest of the row",
    VectorFunction.RSSQ: "isum_64 of the rounded A * A",
    VectorFunction.RDOT: "isum_64 of the rounded A * B",
    VectorFunction.ARGMAX: "largest of the row and its column",
}


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def machines() -> str:
    sizes = ["depth", "mcols", "act_rows", "act_blocks", "tmem_words", "imem_instructions"]
    names = ["D", "MCOLS", "ACT_ROWS", "ACT_BLOCKS", "TMEM words", "IMEM instructions"]
    rows = [[f"`{name}`", *(f"{getattr(machine, size):,}" for size in sizes)] for name, machine in MACHINES.items()]
    return table(["machine", *names], rows)


def summary() -> str:
    rows = [
        [f"{operation.opcode:#04x}", f"[{operation.name}](#{anchor(operation)})", operation.meaning]
        for operation in OPERATIONS
    ]
    return table(["opcode", "name", "effect"], rows)


def anchor(operation: Operation) -> str:
    return f"{operation.name.lower()}-{operation.opcode:#04x}"


def is_flag(operand: Operand) -> bool:
    return isinstance(operand, Bits) and operand.word == 0


def flag_bits(operand: Operand) -> str:
    """Bit numbers inside the flags field, counted from 0."""
    (_, mask), *_ = operand.mask()
    bits = [bit - 24 for bit in range(24, 32) if mask >> bit & 1]
    return f"flags[{bits[0]}]" if len(bits) == 1 else f"flags[{bits[-1]}:{bits[0]}]"


def instruction(operation: Operation) -> str:
    rows = [
        [f"`{operand.name}`", flag_bits(operand) if is_flag(operand) else operand.where(), operand.meaning]
        for operand in operation.operands
    ]
    functions = table(["func", "name", "result"], [[str(int(f)), f.name, text] for f, text in FUNCTIONS.items()])
    parts = [
        f"### {operation.name} ({operation.opcode:#04x})",
        f"{operation.meaning[0].upper()}{operation.meaning[1:]}.",
    ]
    if rows:
        parts.append(table(["operand", "where", "meaning"], rows))
    if operation.name in NOTES:
        parts.append(NOTES[operation.name].replace("{functions}", functions))
    return "\n\n".join(parts)


def page() -> str:
    constants = {
        "exp2": " ".join(f"{int(bits):08X}" for bits in EXP2_COEFFICIENTS),
        "log2": " ".join(f"{int(bits):08X}" for bits in LOG2_COEFFICIENTS),
    }
    sections = [
        "# Instruction set",
        INTRODUCTION,
        "## Machine",
        MACHINE,
        machines(),
        "## Encoding",
        ENCODING,
        "## Instructions",
        summary(),
        *(instruction(operation) for operation in OPERATIONS),
        "## Arithmetic",
        ARITHMETIC.format(**constants),
        "## Errors",
        ERRORS,
    ]
    return "\n\n".join(section.strip() for section in sections) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the page is not up to date")
    text = page()
    if parser.parse_args().check:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print(f"{PAGE.name} is out of date; run scripts/gen_isa_doc.py", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
