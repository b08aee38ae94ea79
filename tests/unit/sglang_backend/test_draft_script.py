"""Drafts from a file: overlaid by position and by depth, and refused where they do not fit."""

import json

import pytest

torch = pytest.importorskip("torch")

from jetspec_engine.errors import ConfigError  # noqa: E402
from jetspec_engine.sglang_backend.draft_script import DraftScript  # noqa: E402


def overlaid(tmp_path, document, positions=((3, 4),)):
    script = DraftScript(positions=8, width=2, device="cpu")
    path = tmp_path / "script.json"
    path.write_text(json.dumps(document))
    script.load(path)
    head = torch.tensor([[[10, 11], [12, 13]]]), torch.tensor([[[-1.0, -2.0], [-3.0, -4.0]]])
    tokens, logprobs = script.overlay(*head, torch.tensor(positions))
    return tokens.tolist()[0], logprobs.tolist()[0]


def test_an_empty_script_leaves_the_head_alone(tmp_path):
    assert overlaid(tmp_path, {}) == ([[10, 11], [12, 13]], [[-1, -2], [-3, -4]])


def test_positions_beat_depths_which_beat_the_head(tmp_path):
    document = {
        "ids": [[], [], [], [], [5, -1]], "logprobs": [[]] * 4 + [[-0.5, None]],
        "depth_logprobs": [[-7, -8], [-7.5, -8.5]],
    }  # fmt: skip
    assert overlaid(tmp_path, document) == ([[10, 11], [5, 13]], [[-7, -8], [-0.5, -8.5]])


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"ids": [[1, 2, 3]]}, r"ids\[0\]: \[1, 2, 3\], expected at most 2 token ids"),
        ({"ids": [[1]] * 9}, "expected a list of at most 8 rows"),
        ({"ids": [[1], [1.5]]}, r"ids\[1\]: \[1.5\], expected at most 2 token ids"),
        ({"ids": [["x"]]}, r"ids\[0\]"),
        ({"ids": [5]}, r"ids\[0\]: 5"),
        ({"ids": 5}, "ids: 5, expected a list"),
        ({"logprobs": None}, "logprobs: None, expected a list"),
        ({"ids": [[10**40]]}, r"ids\[0\]"),
        ({"depth_logprobs": [[float("-inf")]]}, "expected at most 2 numbers"),
        ({"id": []}, "unknown key 'id'"),
        ([], "list, expected a JSON object"),
    ],
)
def test_rows_that_do_not_fit_are_refused(tmp_path, document, reason):
    with pytest.raises(ConfigError, match=rf"draft script: {tmp_path}/script.json: .*{reason}"):
        overlaid(tmp_path, document)


@pytest.mark.parametrize("content", ["", "{", "[" * 100_000, "9" * 5000])
def test_what_is_no_json_is_refused(tmp_path, content):
    path = tmp_path / "script.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="draft script: "):
        DraftScript(positions=8, width=2, device="cpu").load(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no-such"):
        DraftScript(positions=8, width=2, device="cpu").load(tmp_path / "no-such.json")
