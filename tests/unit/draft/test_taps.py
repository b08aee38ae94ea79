"""The public rule for tapped layers."""

import pytest

from jetspec_engine.draft.taps import default_target_layer_ids


@pytest.mark.parametrize(
    ("target", "draft", "expected"),
    [(36, 5, (1, 9, 17, 25, 33)), (36, 1, (18,)), (30, 5, (1, 8, 14, 20, 27)), (28, 3, (1, 13, 25)), (5, 2, (1, 2))],
)
def test_the_rule(target: int, draft: int, expected: tuple[int, ...]) -> None:
    assert default_target_layer_ids(target, draft) == expected


@pytest.mark.parametrize("target", range(8, 100))
def test_layers_ascend_within_the_target(target: int) -> None:
    for draft in range(2, 6):
        ids = default_target_layer_ids(target, draft)
        assert ids[0] == 1
        assert ids[-1] == target - 3
        assert list(ids) == sorted(set(ids))
