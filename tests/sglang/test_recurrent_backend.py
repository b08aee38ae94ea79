"""What stands before a hybrid target's verify: state slots, padding, token starts; eager, captured and replayed."""

import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from jetspec_engine.errors import ConfigError  # noqa: E402
from jetspec_engine.sglang_backend.recurrent.backend import RecurrentVerify, _check_states  # noqa: E402
from jetspec_engine.sglang_backend.recurrent.round import RecurrentRound  # noqa: E402
from jetspec_engine.sglang_backend.round_state import RoundShape, RoundState  # noqa: E402

ROWS = (4, 6)
SLOT_OF = torch.tensor([9, 3, 5, 7, 1, 8], dtype=torch.int32)


class Stock:
    """SGLang's backend, as far as a verify reaches it."""

    def __init__(self):
        self.req_to_token_pool = types.SimpleNamespace(get_mamba_indices=lambda rows: SLOT_OF[rows])
        self.prepared = []

    def init_forward_metadata(self, forward_batch):
        self.prepared.append(forward_batch)

    init_forward_metadata_out_graph = init_forward_metadata


class Taught(RecurrentVerify, Stock):
    pass


@pytest.fixture
def taught():
    shape = RoundShape(requests=4, rows=ROWS, depth=3, width=2, row_width=32, heads=2, head_width=16)
    state = RoundState(shape, "cpu", has_kernels=False)
    made = Taught()
    made.jetspec_recurrent = RecurrentRound(state, "cpu", has_kernels=False)
    made.state = state
    return made


def batch(rows, requests, *, is_verify=True, **more):
    mode = types.SimpleNamespace(is_target_verify=lambda: is_verify)
    return types.SimpleNamespace(
        batch_size=len(requests), req_pool_indices=torch.tensor(requests), forward_mode=mode,
        spec_info=types.SimpleNamespace(draft_token_num=rows), _original_batch_size=None, **more,
    )  # fmt: skip


def prepare(taught, forward_batch, **how):
    table = torch.zeros((6, 32), dtype=torch.int32)
    rows = forward_batch.spec_info.draft_token_num
    taught.state.stage(table, forward_batch.req_pool_indices, torch.zeros(forward_batch.batch_size).long(), rows)
    if how:
        taught.init_forward_metadata_out_graph(forward_batch, in_capture=how["in_capture"])
    else:
        taught.init_forward_metadata(forward_batch)
    return taught.forward_metadata


@pytest.mark.parametrize("rows", ROWS)
def test_a_replay_marks_padding_so_that_no_state_is_read_or_kept_for_it(plugged, taught, rows):
    found = prepare(taught, batch(rows, [2, 0, 1, 0], num_padding=1), in_capture=False)
    assert found.mamba_cache_indices.tolist() == [5, 9, 3, -1]
    assert found.query_start_loc.tolist() == [rows * place for place in range(5)]
    again = prepare(taught, batch(rows, [1], num_padding=0), in_capture=False)
    assert again.mamba_cache_indices.tolist() == [3]
    # A captured kernel reads these very tensors.
    assert again.mamba_cache_indices.data_ptr() == found.mamba_cache_indices.data_ptr()


def test_a_capture_has_no_padding_and_an_eager_forward_says_its_own(plugged, taught):
    captured = prepare(taught, batch(4, [0, 0, 0], num_padding=2), in_capture=True)
    assert captured.mamba_cache_indices.tolist() == [9, 9, 9]
    eager = batch(4, [3, 4])
    assert prepare(taught, eager).mamba_cache_indices.tolist() == [7, 1]
    eager._original_batch_size = 1
    assert prepare(taught, eager).mamba_cache_indices.tolist() == [7, -1]


def test_what_is_no_verify_stays_sglangs(taught):
    prefill = batch(4, [0], is_verify=False)
    taught.init_forward_metadata(prefill)
    assert taught.prepared == [prefill]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"intermediate_ssm": None}, "no room"),
        ({"intermediate_conv_window": [torch.zeros(2, 3, 8).as_strided((2, 3, 4, 4), (24, 8, 1, 1))]}, "overlap"),
        ({"temporal": torch.zeros(2, 3, 4, 8, 12)}, "power of two"),
        ({"temporal": torch.zeros(2, 3, 4, 16, 8).transpose(-1, -2)}, "in pieces"),
    ],
)
def test_R36_pools_that_keep_states_otherwise_are_refused_at_start(changes, word):
    caches = {
        "intermediate_ssm": torch.zeros(1), "intermediate_conv_window": [torch.zeros(2, 3, 4, 8)],
        "temporal": torch.zeros(2, 3, 4, 16, 16),
    }  # fmt: skip
    pool = types.SimpleNamespace(
        get_speculative_mamba2_params_all_layers=lambda: types.SimpleNamespace(**{**caches, **changes})
    )
    with pytest.raises(ConfigError, match=word):
        _check_states(pool)
