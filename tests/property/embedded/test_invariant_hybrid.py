"""The invariant verify: what only recurrent layers and experts can get wrong, and the targets that get it wrong.

The property itself is in ``test_invariant_verify``, for every family.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from jetspec_engine.embedded import delta_scan
from jetspec_engine.models import expert_block
from jetspec_engine.protocol import SlotRegion, VerifyItem
from jetspec_engine.tree.record import DraftTree
from support.decoder_cases import (
    DTYPES,
    RECURRENT,
    assert_broken,
    assert_invariant,
    assert_same_bits,
    loaded,
    plain_text,
    tiny_target,
)
from support.devices import DEVICES
from support.seeded_faults import put_in_force

# Which of two siblings is the right one, by depth. Alternating: a state from the node in the same place is wrong.
RIGHT_ONE = {"first": (False, False), "last": (True, True), "alternating": (False, True)}


def siblings_tree(ids: np.ndarray, right_one: str) -> tuple[DraftTree, list[int]]:
    """Return a tree of two siblings at every depth, children of the right one, and the right path's nodes."""
    tokens, parents, path = [int(ids[0])], [-1], [0]
    for depth, token in enumerate(ids[1:]):
        is_right_last = RIGHT_ONE[right_one][depth % 2]
        pair = [int(token), (int(token) + 1) % 320]
        parents += [path[-1]] * 2
        path.append(len(tokens) + is_right_last)
        tokens += reversed(pair) if is_right_last else pair
    depths = [0, *(1 + (node - 1) // 2 for node in range(1, len(tokens)))]
    arrays = (np.array(values, dtype=np.int64) for values in (tokens, parents, depths))
    return DraftTree(*arrays, np.zeros(len(tokens), np.float32)), path


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("right_one", RIGHT_ONE)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", RECURRENT)
def test_case_16_two_siblings_a_depth_have_their_parents_state(
    family: str, dtype: torch.dtype, right_one: str, device: str
) -> None:
    made, (text, *_) = loaded(family, dtype, device)
    region, depth = SlotRegion(start=9, capacity=120), 7
    for length in range(0, len(text.ids) - depth, depth):
        tree, path = siblings_tree(text.ids[length : length + depth], right_one)
        (result,) = made.verify([VerifyItem(region=region, length=length, tree=tree)])
        assert_same_bits(result, path, text, length)
        made.commit(region, length, path)


# ------------------------------------------------------------------------------- partners that must fail


def rejected_states_leave_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_scan.torch, "stack", lambda tensors: tensors[0].unsqueeze(0))


SEEDED_FAULTS = (
    "wrong-state-parent", "convolution-over-siblings", "convolution-not-committed", "state-not-committed",
    "state-of-last-node", "state-committed-twice",
)  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fault", [*SEEDED_FAULTS, rejected_states_leave_a_trace])
def test_case_16_seeded_faults_break_the_bits(
    fault: str | Callable, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tiny_target("qwen3.5", torch.float32, device=device)
    texts = [plain_text(made, seed=0, count=60)]
    assert_invariant(made, texts, random.Random(0))
    put_in_force(fault, monkeypatch) if isinstance(fault, str) else fault(monkeypatch)
    assert_broken(made, texts)


def test_R13_experts_added_in_the_order_of_a_batch_break_the_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny_target("qwen3-moe", torch.float32)
    texts = [plain_text(made, seed=0, count=60)]

    def in_the_batchs_order(logits: torch.Tensor, count: int, *, is_normed: bool) -> Any:
        """Sum a token's experts in an order that depends on how many rows there are."""
        shares, ids = choose(logits, count, is_normed=is_normed)
        return (shares.flip(1), ids.flip(1)) if len(logits) % 2 else (shares, ids)

    choose = expert_block.choose_experts
    monkeypatch.setattr(expert_block, "choose_experts", in_the_batchs_order)
    # Two terms commute, so a third is needed for the order to matter.
    shape = made._decoder._layers[0]._feed._shape
    assert shape.num_chosen == 3, "the test needs a sum whose order matters"
    assert_broken(made, texts)
