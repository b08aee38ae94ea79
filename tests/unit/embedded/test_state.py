"""The static caches: moves of accepted paths, copies of prefixes, and nothing beyond (case 9)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_engine.embedded.state import KeyValueState
from jetspec_engine.protocol import SlotRegion


def numbered_state(num_slots: int = 40) -> KeyValueState:
    """Every slot holds its own number, in every layer, head and dimension."""
    state = KeyValueState(
        num_layers=2,
        num_heads=3,
        num_slots=num_slots,
        head_dim=4,
        key_dtype=torch.float32,
        value_dtype=torch.float64,
        num_guard_slots=5,
        device=torch.device("cpu"),
    )
    state.keys[:] = torch.arange(num_slots + 5.0)[None, None, :, None]
    state.values[:] = torch.arange(float(num_slots))[None, None, :, None]
    return state


def slots_of(tensor: torch.Tensor) -> list[float]:
    assert (tensor == tensor[:1, :1, :, :1]).all()
    return tensor[0, 0, :, 0].tolist()


@given(length=st.integers(0, 10), steps=st.lists(st.integers(1, 4), max_size=5))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_case_08_case_09_a_path_moves_down_and_nothing_else_moves(length: int, steps: list[int]) -> None:
    path = [0]
    for step in steps:
        path.append(path[-1] + step)
    state, region = numbered_state(), SlotRegion(start=8, capacity=32)
    state.keep_path(region, length, path)
    root = region.start + length
    for tensor in (state.keys, state.values):
        wanted = [float(slot) for slot in range(tensor.shape[2])]
        wanted[root : root + len(path)] = [float(root + node) for node in path]
        assert slots_of(tensor) == wanted


def test_a_chain_moves_nothing() -> None:
    state = numbered_state()
    state.keys = state.keys.clone().requires_grad_(requires_grad=True)  # a write in place would raise
    state.keep_path(SlotRegion(start=0, capacity=40), 3, [0, 1, 2, 3])


@pytest.mark.parametrize(("source", "destination"), [(0, 20), (20, 0), (8, 8)])
def test_a_prefix_is_copied_between_regions(source: int, destination: int) -> None:
    state = numbered_state()
    state.copy(SlotRegion(start=source, capacity=12), SlotRegion(start=destination, capacity=12), 7)
    for tensor in (state.keys, state.values):
        wanted = [float(slot) for slot in range(tensor.shape[2])]
        wanted[destination : destination + 7] = [float(source + i) for i in range(7)]
        assert slots_of(tensor) == wanted


def test_bytes_are_those_of_both_tensors() -> None:
    state = numbered_state()
    assert state.num_bytes == 2 * 3 * 4 * (45 * 4 + 40 * 8)
