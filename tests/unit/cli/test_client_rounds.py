"""Rounds read from a stream's chunks and the server's histogram."""

import pytest

from jetspec_cli.serving.generation import rounds_of


@pytest.mark.parametrize(
    ("chunks", "histogram", "expected"),
    [
        ([1, 3, 2], [0, 1, 1, 1], [1, 3, 2]),
        ([4, 2], [0, 1, 1, 1], [1, 3, 2]),
        ([2, 2], [0, 2, 1], [1, 1, 2]),
        ([1], [0, 1], [1]),
        ([3, 3], [0, 0, 0, 2], [3, 3]),
        # A round that emitted nothing has no chunk.
        ([1, 3], [2, 1, 0, 1], [1, 3]),
        # Two rounds in a later chunk cannot be told apart.
        ([1, 5], [0, 1, 1, 1], None),
        ([1, 3], [], None),
        ([1, 3, 3], [0, 1, 0, 1], None),
        ([], [0], None),
    ],
)
def test_rounds(chunks, histogram, expected):
    assert rounds_of(chunks, histogram) == expected
