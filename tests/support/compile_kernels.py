"""Compile every kernel of the SGLang backend for a Hopper GPU, which takes none: ``python -m support.compile_kernels``.

The interpreter accepts what the compiler refuses. Prints a line a kernel: name, dtype, bytes of shared memory.
"""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from jetspec_engine.sglang_backend.kernels import (
    accept_walk,
    build_trees,
    draft_block,
    forced_walk,
    lay_out,
    move_rows,
    path_conv,
    path_delta,
    path_plan,
    stage_batch,
    top_candidates,
    verify_attention,
)

TARGET = GPUTarget("cuda", 90, 32)
# Types of the pointers, by argument name; "x" is the dtype of queries, keys and values.
POINTERS = {
    "query keys values out": "x",
    "indptr indices starts lengths firsts slots depths": "*i64",
    "anchors tokens parents ids out_tokens out_parents out_depths out_count target_ids counts bonus gained": "*i64",
    "first_child next_sibling positions addresses words strides": "*i64",
    "prefix_lens requests lens_out tokens_out parents_out depths_out ids node_slots": "*i64",
    "tops weights partial logprobs out_logprobs sums": "*fp32",
    "decay_scale state kept": "*fp32",
    "mixed weight bias decay write decay_bias": "x",
    "settings": "*fp64",
    "path bounds caps begins lens links table req_to_token slots_out path_out": "*i32",
    "out_valid mask valid valid_out": "*i1",
    "logits": "*bf16",
}
TYPES = {name: kind for names, kind in POINTERS.items() for name in names.split()}


def compile_one(kernel, dtype, constants, overrides=None, **options):
    """Compile with these constants for queries of this dtype, or raise; overrides are types by argument name."""
    known = {**TYPES, "scale": "fp32", "epsilon": "fp32", **(overrides or {})}
    signature, fixed, hints = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        kind = known.get(name, "i32").replace("x", f"*{dtype}")
        if name in constants:
            signature[name], fixed[place,] = "constexpr", constants[name]
            continue
        signature[name] = kind
        if kind.startswith("*") or name.endswith(("_slot", "_head")):
            hints[place,] = [["tt.divisibility", 16]]
    options = {"enable_fp_fusion": False, **options}
    return triton.compile(ASTSource(kernel, signature, fixed, hints), target=TARGET, options=options)


def attention_cases():
    """Both halves of verify attention, in the shapes they run in."""
    for dtype, group, width, windowed in (
        ("bf16", 4, 128, False), ("bf16", 8, 256, False), ("fp16", 3, 64, True), ("fp32", 3, 64, False)
    ):  # fmt: skip
        tiles = verify_attention.FLOAT_TILES if dtype == "fp32" else verify_attention.HALF_TILES
        shape = {"GROUP": group, "WIDTH": width, "BLOCK": tiles.block, "WINDOWED": windowed, "HAS_FIRST": windowed,
                 "OVERLAP": dtype == "bf16"}  # fmt: skip
        yield (
            verify_attention._prefix, dtype, {**shape, "ROWS": tiles.prefix_rows}, None,
            {"num_warps": tiles.prefix_warps, "num_stages": tiles.stages},
        )  # fmt: skip
        yield (
            verify_attention._tail, dtype, {**shape, "ROWS": tiles.tail_rows, "SPLITS": 32}, None,
            {"num_warps": tiles.tail_warps, "num_stages": 1},
        )  # fmt: skip


def tree_cases():
    """The kernels around the trees."""
    levels = {"values": "*fp64"}
    for nodes, warps in ((64, 1), (1024, 4)):
        shape = {"NODES": nodes, "DEPTHS": 16, "WIDTHS": 8}
        yield build_trees._grow, "", shape, levels, {"num_warps": warps}
        for walk in (accept_walk._walk, forced_walk._follow):
            yield walk, "", {"NODES": nodes, "PATH": 16}, {"path": "*i64"}, {"num_warps": warps}
    for kind in (stage_batch.KEEP, stage_batch.CHAIN, stage_batch.COPY):
        shape = {"KIND": kind, "NODES": 128, "PATH": 16, "CHUNK": stage_batch.CHUNK}
        yield stage_batch._stage, "", shape, None, {}
    yield draft_block._block, "", {"NODES": 128}, {"bonus": "*i64"}, {}
    yield lay_out._lay_out, "", {"NODES": 64, "PATH": 16, "ROWS": lay_out.ROWS}, None, {}
    yield move_rows._move, "", {"PATH": 16, "CHUNK": move_rows.CHUNK}, {"path": "*i64"}, {}
    yield top_candidates._best_of_chunk, "", {"CHUNK": top_candidates.CHUNK}, {"keys": "*i64"}, {}
    yield top_candidates._best_of_all, "", {"CHUNKS": 128, "KEYS": 1024}, {"keys": "*i64"}, {}


def state_cases():
    """The kernels of gated-delta layers, in the shape of Qwen3.6-35B-A3B and in full precision."""
    for dtype, width in (("bf16", 128), ("fp32", 16)):
        heads = {"KEY_HEADS": 16, "KEY_WIDTH": width, "VALUE_HEADS": 32, "VALUE_WIDTH": width, "VALUES": min(width, 32)}
        yield path_delta._delta, dtype, heads, None, {"num_warps": 1, "enable_fp_fusion": True}
        shape = {"TAPS": 4, "BLOCK": path_conv.FEATURES, "HAS_BIAS": dtype == "fp32", "HAS_SILU": True}
        windows = {"state": f"*{dtype}", "kept": f"*{dtype}"}
        yield path_conv._convolve, dtype, shape, windows, {"num_warps": 4, "enable_fp_fusion": True}
    yield path_plan._plan, "", {"NODES": 64, "ROWS": path_plan.ROWS}, None, {"num_warps": 1}


def main() -> None:
    for kernel, dtype, constants, overrides, options in (*attention_cases(), *tree_cases(), *state_cases()):
        compiled = compile_one(kernel, dtype, constants, overrides, **options)
        sys.stdout.write(f"{kernel.fn.__name__} {dtype} shared {compiled.metadata.shared}\n")


if __name__ == "__main__":
    main()
