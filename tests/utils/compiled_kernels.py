"""Compiles every Triton kernel for an NVIDIA GPU, without one, and prints their names.

A program of its own, as the tests have kernels interpreted: the interpreter takes some that a GPU does not.
"""

import itertools
from types import ModuleType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from vicinal.evaluation.counting import device_kernel
from vicinal.losses import rank_kernels

H100 = GPUTarget("cuda", 90, 32)
TYPES = {
    **dict.fromkeys(("keys", "first_slots", "query_labels", "gallery_labels"), "*i64"),
    "num_before": "*i32",
    "is_tied": "*u8",
    **dict.fromkeys(("p", "q", "start", "first_row", "columns", "row_stride", "column_stride"), "i32"),
    **dict.fromkeys(("factor", "lowest", "tolerance", "linear_from", "slope", "margin"), "fp32"),
}
"""Of arguments that are not pointers to float32."""
BLOCKS = {"block_p": 8, "block_q": 256}
OPTIONS = ("exact", "linear", "soft", "semi_hard")


def compile_kernels(module: ModuleType, **types: str) -> None:
    """Compile the kernels of a module with each of their options, down to machine code."""
    for name, kernel in vars(module).items():
        arguments = getattr(kernel, "arg_names", ())
        if not name.startswith("_") or "return " in getattr(kernel, "src", "return "):
            continue  # no kernel, or a part of some
        options = [option for option in OPTIONS if option in arguments]
        for chosen in itertools.product([False, True], repeat=len(options)):
            constants: dict[str, Any] = {each: size for each, size in BLOCKS.items() if each in arguments}
            constants |= dict(zip(options, chosen, strict=True))
            signature = {each: (TYPES | types).get(each, "*fp32") for each in arguments} | dict.fromkeys(
                constants, "constexpr"
            )
            triton.compile(ASTSource(fn=kernel, signature=signature, constexprs=constants), target=H100).asm["cubin"]
        print(name)


if __name__ == "__main__":
    compile_kernels(device_kernel, counts="*i64")
    compile_kernels(rank_kernels)
