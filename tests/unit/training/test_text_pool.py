"""Pools split, save, join and batch without losing or mixing rows."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from jetspec_engine.errors import ArtifactError
from jetspec_engine.training.text_pool import TextPool, join


def test_a_split_parts_all_rows_and_holds_out_greedy_ones(pools: Callable[..., TextPool]) -> None:
    pool = pools(20)
    pool.is_greedy[::2] = False
    rest, held = pool.split(6, seed=1)
    assert (len(rest), len(held)) == (14, 6)
    assert held.is_greedy.all()
    whole = {tuple(r.tolist()) for r in pool.tokens}
    assert {tuple(r.tolist()) for r in torch.cat([rest.tokens, held.tokens])} == whole


def test_an_epoch_visits_rows_once_in_batches_of_similar_length(pools: Callable[..., TextPool]) -> None:
    pool = pools(101)
    order = pool.epoch_order(8, seed=3)
    rows = torch.cat(order)
    assert len(rows) == len(rows.unique()) == 96
    assert all(len(b) == 8 for b in order)
    spread = max(int(pool.lengths[b].max() - pool.lengths[b].min()) for b in order)
    assert spread <= 6
    assert all(torch.equal(a, b) for a, b in zip(order, pool.epoch_order(8, seed=3), strict=True))


def test_anchors_lie_in_the_answer_and_leave_a_token(pool: TextPool) -> None:
    rows = torch.arange(len(pool))
    short, full = pool.draw_anchors(rows, [10, 3], seed=9)
    for anchors in (short, full):
        assert (anchors >= pool.answer_starts[:, None]).all()
        assert (anchors <= pool.lengths[:, None] - 2).all()
        assert (anchors.diff(dim=1) >= 0).all()


def test_a_batch_is_cut_to_its_longest_row(pool: TextPool) -> None:
    rows = pool.lengths.argsort()[:3]
    pool.tokens = torch.nn.functional.pad(pool.tokens, (0, 60))
    batch = pool.batch(rows)
    assert batch.tokens.shape == (3, 32)
    assert torch.equal(batch.tokens, pool.tokens[rows, :32].long())
    assert torch.equal(batch.lengths, pool.lengths[rows])


def test_a_pool_survives_its_file(pool: TextPool, tmp_path: Path) -> None:
    pool.save(tmp_path / "pool.safetensors")
    again = TextPool.load(tmp_path / "pool.safetensors", torch.device("cpu"))
    assert torch.equal(again.tokens, pool.tokens)
    assert len(join([pool, again])) == 2 * len(pool)
    (tmp_path / "bad.safetensors").write_bytes(b"no pool")
    with pytest.raises(ArtifactError, match=r"bad\.safetensors"):
        TextPool.load(tmp_path / "bad.safetensors", torch.device("cpu"))
