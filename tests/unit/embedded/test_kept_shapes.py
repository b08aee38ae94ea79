"""A CPU's library keeps a compiled kernel for every shape it meets: a server must meet few, whatever it is asked."""

from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from jetspec_engine.config import ServeConfig
from jetspec_engine.draft.row_counts import ROW_COUNTS, next_row_count
from jetspec_engine.embedded.assembly import build_engine
from jetspec_engine.embedded.layouts import PLAIN, choose_layout
from jetspec_engine.protocol import SlotRegion, VerifyItem
from jetspec_engine.records import GenerateRequest
from jetspec_engine.tree.record import DraftTree
from support.tiny_pairs import CONTEXT, make_tiny_pair


class KeptShapes(TorchDispatchMode):
    """Notes the products that the library compiles for: oneDNN's by row count and width, and any other in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, set[int]] = {}
        self.others: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, tensors = str(func), [arg for arg in args if isinstance(arg, torch.Tensor)]
        if "mkldnn._linear" in name:
            rows, width = tensors[0].shape
            self.rows.setdefault(f"{name} of {width} inputs", set()).add(rows)
        elif any(word in name for word in ("mm", "matmul", "linear", "einsum")):
            self.others.update(name for t in tensors if t.dtype == torch.bfloat16)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_lengths_of_text_and_sizes_of_rounds_do_not_multiply_the_kernels(dtype: torch.dtype, tmp_path: Path) -> None:
    if choose_layout(dtype, torch.device("cpu")) is PLAIN:
        pytest.skip("this processor packs no weights of that dtype")
    name = str(dtype).removeprefix("torch.")
    config = ServeConfig(**make_tiny_pair(tmp_path), device="cpu", dtype=name, num_threads=1)
    engine = build_engine(config, lambda progress: None)
    target, drafter = engine._target, engine._drafter
    region = SlotRegion(start=0, capacity=CONTEXT)
    with torch.inference_mode(), KeptShapes() as kept:
        for count in range(1, 50):
            session = drafter.open(GenerateRequest(request_id="r", input_ids=(1,)), region)
            for _ in range(2):
                item = VerifyItem(region=region, length=session.length, tree=DraftTree.chain(range(1, count + 1)))
                (result,) = target.verify((item,))
                drafter.extend(session, item.tree.tokens, result.hidden)
                drafter.propose([session], [7], 4)
    engine.close()
    assert kept.rows, "nothing was seen: the products go another way now"
    assert all(rows <= set(ROW_COUNTS) for rows in kept.rows.values()), kept.rows
    assert not kept.others


@pytest.mark.parametrize(("count", "allowed"), [(1, 1), (3, 4), (13, 16), (16, 16), (17, 24), (128, 128), (129, 256)])
def test_the_next_row_count(count: int, allowed: int) -> None:
    assert next_row_count(count) == allowed
