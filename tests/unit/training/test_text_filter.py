"""Loops are found where they start; text that repeats a phrase now and then is not one."""

import torch

from jetspec_engine.training.text_filter import is_looping, loop_onset, repeated


def _slow_repeated(row: list[int], start: int, end: int) -> list[bool]:
    grams = [tuple(row[t - 3 : t + 1]) if start + 3 <= t < end else None for t in range(len(row))]
    return [g is not None and g in grams[:t] for t, g in enumerate(grams)]


def test_repeated_grams_equal_a_slow_count() -> None:
    tokens = torch.randint(0, 3, (6, 50), generator=torch.Generator().manual_seed(0))
    starts, ends = torch.tensor([0, 4, 9, 2, 0, 30]), torch.tensor([50, 44, 50, 10, 5, 31])
    found = repeated(tokens, starts, ends)
    for row in range(6):
        assert found[row].tolist() == _slow_repeated(tokens[row].tolist(), int(starts[row]), int(ends[row]))


def test_a_loop_starts_after_its_first_lap() -> None:
    varied = list(range(100, 140))
    loop = [1, 2, 3, 4, 5, 6] * 15
    tokens = torch.tensor([varied + loop, list(range(130)), varied + loop])
    starts, ends = torch.tensor([5, 5, 5]), torch.tensor([130, 130, 45])
    onset = loop_onset(tokens, starts, ends)
    assert 40 <= int(onset[0]) <= 52
    assert onset[1:].tolist() == [130, 45]


def test_a_repeated_phrase_is_no_loop() -> None:
    phrase = [7, 8, 9, 10, 11, 12]
    row = [x for i in range(12) for x in (*phrase, *range(100 + 20 * i, 110 + 20 * i))]
    tokens = torch.tensor([row])
    end = torch.tensor([len(row)])
    assert loop_onset(tokens, torch.tensor([0]), end).tolist() == [len(row)]


def test_running_rows_are_stopped_in_a_loop_only() -> None:
    tokens = torch.zeros(3, 200, dtype=torch.long)
    tokens[0] = torch.arange(200)
    tokens[1] = torch.arange(200) % 10
    tokens[2] = torch.arange(200) % 10
    positions = torch.tensor([180, 180, 180])
    assert is_looping(tokens, torch.tensor([20, 20, 120]), positions).tolist() == [False, True, False]
