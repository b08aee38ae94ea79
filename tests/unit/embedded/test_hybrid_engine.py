"""Engines over targets with recurrent layers: every end of a request, prefixes, company, and memory that comes back."""

from pathlib import Path
from typing import Any

import pytest

from jetspec_engine.config import LINEAR, PLAIN, ServeConfig, TreeConfig
from jetspec_engine.embedded import delta_room
from jetspec_engine.embedded.assembly import build_engine
from jetspec_engine.embedded.delta_room import REUSE_NOTE
from jetspec_engine.errors import ArtifactError, ConfigError
from support.devices import DEVICES
from support.engine_runs import Rig
from support.tiny_pairs import assembled_rig, make_hybrid_pair

PROMPT = tuple(range(10, 40))
TREES = (LINEAR, TreeConfig(width=2, budget=8), TreeConfig(width=8, budget=64))
RECALL = {"drafter": "recall", "dtype": "float32"}
ENDS: tuple[dict[str, Any], ...] = (
    {"max_new_tokens": 1},
    {"max_new_tokens": 7},
    {"max_new_tokens": 40},
    {"max_new_tokens": 40, "stop_token_ids": "a token of the text"},
    {"max_new_tokens": 40, "min_new_tokens": 20, "stop_token_ids": "a token of the text"},
)


@pytest.fixture(scope="module", params=DEVICES)
def pair(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, str]:
    return {**make_hybrid_pair(tmp_path_factory.mktemp("pair")), "device": request.param}


def decode(rig: Rig, tree: TreeConfig, prompt: tuple[int, ...] = PROMPT, **options: Any) -> Any:
    rig.engine.set_tree(tree)
    rig.engine.flush_cache()
    return rig.run(prompt, ignore_eos=True, **options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["qwen3-moe", "qwen3-next", "qwen3.5", "qwen3.5-moe"])
def test_R13_a_real_pair_decodes_alike_at_every_width(family: str, dtype: str, device: str, tmp_path: Path) -> None:
    with assembled_rig(make_hybrid_pair(tmp_path, family), device=device, dtype=dtype, max_budget=64) as rig:
        expected = decode(rig, PLAIN, max_new_tokens=30).ids
        assert [decode(rig, tree, max_new_tokens=30).ids for tree in TREES] == [expected] * len(TREES)
        scores = rig.engine.score((*PROMPT, *expected), len(PROMPT), 1)
    assert [score.top[0][0] for score in scores] == expected


@pytest.mark.parametrize("end", ENDS)
def test_R13_every_end_commits_once_and_a_continuation_finds_the_right_state(
    pair: dict[str, str], end: dict[str, Any]
) -> None:
    """Stops inside a block, caps and zero accepts: the text goes on from the kept state as from a fresh one."""
    with assembled_rig(pair, **RECALL, max_budget=64) as rig:
        text = decode(rig, PLAIN, max_new_tokens=40).ids
        options = {**end, **({"stop_token_ids": (text[11],)} if "stop_token_ids" in end else {})}
        plain = decode(rig, PLAIN, **options)
        for tree in (*TREES, *TREES):  # the second time drafts come from memory
            result = decode(rig, tree, **options)
            assert (result.ids, result.finish) == (plain.ids, plain.finish)
            # Continued by its own last tokens, so that the committed state is taken over.
            longer = (*PROMPT, *result.ids, 5)
            warm = rig.run(longer, max_new_tokens=12, ignore_eos=True)
            assert warm.stats.num_cached_tokens > len(PROMPT) - 1
            assert warm.ids == decode(rig, tree, longer, max_new_tokens=12).ids


def test_case_21_a_prefix_that_cannot_be_cut_is_decoded_anew_and_that_is_said(pair: dict[str, str]) -> None:
    with assembled_rig(pair, **RECALL) as rig:
        assert REUSE_NOTE in rig.engine.info()["notes"]
        first = rig.run(PROMPT, max_new_tokens=9, ignore_eos=True)
        again = rig.run(PROMPT, max_new_tokens=9, ignore_eos=True)
        branch = rig.run((*PROMPT, *first.ids[:3], 200), max_new_tokens=9, ignore_eos=True)
        assert (again.ids, again.stats.num_cached_tokens) == (first.ids, 0)
        assert branch.stats.num_cached_tokens == 0
        assert branch.ids == decode(rig, PLAIN, (*PROMPT, *first.ids[:3], 200), max_new_tokens=9).ids


def test_case_13_requests_decoded_together_give_their_solo_texts(pair: dict[str, str]) -> None:
    prompts = [PROMPT[:1], PROMPT, PROMPT[3:20], PROMPT[::-1]]
    with assembled_rig(pair, **RECALL, tree=TREES[2], max_running=3, max_budget=64) as rig:
        solo = [decode(rig, TREES[2], prompt, max_new_tokens=25).ids for prompt in prompts]
        for _ in range(2):
            together = [rig.submit(prompt, max_new_tokens=25, ignore_eos=True) for prompt in prompts * 2]
            assert [result.wait().ids for result in together] == solo * 2


def test_case_11_states_are_bounded_and_all_of_them_go(pair: dict[str, str]) -> None:
    with assembled_rig(pair, **RECALL, max_running=2) as rig:
        state = rig.target.delta  # type: ignore[attr-defined]
        most = delta_room.MAX_CACHED_SEQUENCES + 3
        for first in range(30):
            result = rig.submit((first, *PROMPT[:9]), max_new_tokens=9, ignore_eos=True)
            if first % 3 == 0:
                rig.engine.abort("")
            result.wait()
            assert state.num_sequences <= most
        rig.engine.score(PROMPT, 1, 0)
        assert state.num_sequences > 5
        rig.engine.flush_cache()
        assert state.num_sequences == 0


# ------------------------------------------------------------------------------------------ refusals at start


def build(pair: dict[str, str], **config: Any) -> None:
    build_engine(ServeConfig(**{**pair, "device": "cpu", **config}), lambda progress: None).close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bos_token_id": 7, "eos_token_id": 9}, r"eos_token_id: 9, expected one of the target's \[2\]"),
        ({"dflash_config__mask_token_id": 260, "vocab_size": 300}, "vocab_size: 300, expected the target's 260"),
        ({"dflash_config__mask_token_id": 260}, "mask_token_id"),
        ({"num_target_layers": 5}, "num_target_layers: 5, expected the target's 4"),
    ],
)
def test_R29_a_head_for_another_target_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=message):
        build(make_hybrid_pair(tmp_path, **changes))


def test_R29_a_heads_bos_is_checked_against_the_targets(tmp_path: Path) -> None:
    pair = make_hybrid_pair(tmp_path, bos_token_id=1)
    config = tmp_path / "target" / "config.json"
    config.write_text(config.read_text().replace('"bos_token_id": null', '"bos_token_id": 0'))
    with pytest.raises(ArtifactError, match="bos_token_id: 1, expected the target's 0"):
        build(pair)


def test_a_budget_that_cannot_fit_is_refused_with_the_largest_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = make_hybrid_pair(tmp_path)

    def start(available: int, **config: Any) -> None:
        monkeypatch.setattr(delta_room, "available_bytes", lambda device: available)
        build(pair, drafter="random", max_running=2, **config)

    with pytest.raises(ConfigError, match="not even one node fits"):
        start(1 << 16)
    # Weights take most of a megabyte.
    with pytest.raises(ConfigError, match=r"trees of 128 nodes in 2 requests at once .* that fits is \d+") as caught:
        start(1 << 20)
    largest = int(caught.value.what.rpartition(" ")[2])
    assert 1 <= largest < 128
    assert f"--max-budget {largest}" in caught.value.hint
    start(1 << 20, max_budget=largest, tree=TreeConfig(width=2, budget=largest))
    with pytest.raises(ConfigError, match=f"the largest budget that fits is {largest}"):
        start(1 << 20, max_budget=largest + 1, tree=PLAIN)
