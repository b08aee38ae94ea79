"""What the writer writes on its cache is what the target would write read as a whole."""

import pytest
import torch

from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.training.frozen_target import FrozenTarget, StaticCache
from jetspec_engine.training.kernels import decode_step
from jetspec_engine.training.kernels.pick_token import pick_token
from jetspec_engine.training.prompts import PromptTable
from jetspec_engine.training.settings import WriteSettings
from jetspec_engine.training.writer import Writer

END = 2


def _prompts() -> PromptTable:
    g = torch.Generator().manual_seed(5)
    lengths = torch.tensor([3, 6, 4, 5, 2])
    tokens = torch.randint(3, 61, (5, 6), generator=g) * (torch.arange(6) < lengths[:, None])
    return PromptTable(tokens, lengths, torch.tensor([True, False, False, True, False]))


def _writer(target: FrozenTarget, **changes: object) -> Writer:
    settings = WriteSettings(
        **{
            "seconds": 60.0, "max_rows": 9, "num_rows": 4, "user_max": 5, "answer_max": 20, "greedy_share": 1.0,
            "check_every": 4, **changes,
        }
    )  # fmt: skip
    return Writer(target, _prompts(), [END, 7, 8], END, settings=settings)


def test_greedy_answers_equal_the_teacher_forced_argmax(target: FrozenTarget) -> None:
    torch.manual_seed(0)
    pool, counts = _writer(target).write(lambda _: None)
    assert len(pool) >= 5
    assert counts["num_rows"] >= 9
    _, last = target.read(pool.tokens.long())
    choice = target.logits(last).argmax(-1)
    for row in range(len(pool)):
        start, end = int(pool.answer_starts[row]), int(pool.lengths[row])
        assert choice[row, start - 1 : end - 1].tolist() == pool.tokens[row, start:end].tolist()


def test_a_row_holds_its_prompt_the_suffix_and_nothing_after_its_end(target: FrozenTarget) -> None:
    torch.manual_seed(0)
    prompts = _prompts()
    writer = _writer(target)
    pool, _ = writer.write(lambda _: None)
    starts_of = {tuple(t[:n].tolist()) for t, n in zip(prompts.tokens, prompts.lengths.tolist(), strict=True)}
    for tokens, length, start in zip(pool.tokens, pool.lengths.tolist(), pool.answer_starts.tolist(), strict=True):
        assert tokens[start - 3 : start].tolist() == [END, 7, 8]
        assert any(tuple(tokens[: len(p)].tolist()) == p for p in starts_of)
        assert (tokens[length:] == 0).all()
        assert END not in tokens[start : length - 1].tolist()


def test_decoding_equals_reading_and_a_strided_cache_is_refused(
    target: FrozenTarget, target_shape: DecoderConfig
) -> None:
    tokens = torch.randint(1, 61, (3, 11), generator=torch.Generator().manual_seed(2))
    cache = StaticCache(target_shape, 3, 16, torch.device("cpu"), torch.float32)
    steps = [target.decode(tokens[:, t], torch.full((3,), t), cache) for t in range(11)]
    _, last = target.read(tokens)
    torch.testing.assert_close(torch.stack(steps, 1), target.logits(last), rtol=1e-4, atol=1e-4)
    q = torch.randn(3, 4, 8)
    strided = torch.zeros(6, 8, 16).transpose(1, 2)
    with pytest.raises(ValueError, match="strided"):
        decode_step.attend_one(q, strided, cache.values[0], torch.zeros(3, dtype=torch.long))


def test_attention_takes_a_strided_query_for_what_it_is(target_shape: DecoderConfig) -> None:
    cache = StaticCache(target_shape, 2, 8, torch.device("cpu"), torch.float32)
    cache.keys[0].normal_()
    cache.values[0].normal_()
    wide = torch.randn(2, 8, 8)
    positions = torch.tensor([3, 7])
    sliced = decode_step.attend_one(wide[:, 2:6], cache.keys[0], cache.values[0], positions)
    packed = decode_step.attend_one(wide[:, 2:6].clone(), cache.keys[0], cache.values[0], positions)
    assert torch.equal(sliced, packed)


def test_drawn_tokens_follow_the_temperature_and_the_floor() -> None:
    torch.manual_seed(0)
    logits = torch.full((4000, 8), -9.0)
    logits[:, 2], logits[:, 5] = 1.0, 1.0 + 0.7 * 1.0986
    drawn = pick_token(logits, torch.full((4000,), 0.7), 0.01, torch.tensor([3]))
    assert set(drawn.tolist()) == {2, 5}
    assert float((drawn == 5).float().mean()) == pytest.approx(0.75, abs=0.03)
    assert pick_token(logits, torch.zeros(4000), 0.01, torch.tensor([3])).unique().tolist() == [5]
    assert pick_token(torch.zeros(1, 8), torch.zeros(1), 0.01, torch.tensor([3])).tolist() == [0]
