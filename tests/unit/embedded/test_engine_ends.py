"""Where texts end: caps, stops and EOS inside an accepted block (cases 1 to 6), through the whole engine."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from jetspec_engine.config import LINEAR, PLAIN, TreeConfig
from jetspec_engine.draft.scripted import ReplayDrafter
from support import fake_target
from support.engine_runs import WIDE, Collected, engine_rig, said
from support.fake_target import EOS_ID, FakeTokenizer

PROMPT = (0, 5, 9, 11)
TREES = [PLAIN, LINEAR, WIDE]


def run(tree: TreeConfig, mode: str = "right", prompt: Sequence[int] = PROMPT, **sampling: Any) -> Collected:
    with engine_rig(mode, tree=tree) as rig:
        return rig.run(prompt, **sampling)


@pytest.fixture
def scripted_text(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the target say a fixed text after a prompt of four ids, then 39 for ever."""

    def script(text: Sequence[int], prompt: Sequence[int] = PROMPT) -> None:
        said = {fake_target.state_of([*prompt, *text[:n]]): token for n, token in enumerate(text)}

        def logits_of(state: int) -> Any:
            logits = np.zeros(fake_target.VOCAB_SIZE, dtype=np.float32)
            logits[said.get(state, 39)] = 1.0
            return logits

        monkeypatch.setattr(fake_target, "logits_of", logits_of)

    return script


@pytest.mark.parametrize("tree", TREES)
def test_case_01_a_stop_id_before_the_cap_in_one_block(scripted_text: Any, tree: TreeConfig) -> None:
    scripted_text([10, 11, 7, 20, 21, 22])
    result = run(tree, max_new_tokens=5, stop_token_ids=(7,))
    assert result.ids == [10, 11, 7]
    assert (result.finish.kind, result.finish.matched) == ("stop", 7)
    assert result.stats.num_emitted_tokens == 3


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("stop", ["h", "th", "e a", "c th", "éa", "bca", "\n"])
def test_case_02_a_stop_string_that_opens_a_long_accepted_run(scripted_text: Any, tree: TreeConfig, stop: str) -> None:
    # ids: "a" " th" "e " "a" "bc" "ab" "c" " th" C3 A9 "a" "\n" "x33"
    text = [3, 14, 15, 3, 17, 16, 5, 14, 20, 21, 3, 19, 33]
    scripted_text(text)
    whole = FakeTokenizer().decode(text, skip_special_tokens=True)
    result = run(tree, max_new_tokens=len(text), stop=(stop,))
    assert result.text == whole[: whole.index(stop)]
    assert (result.finish.kind, result.finish.matched) == ("stop", stop)
    # As many ids as it takes to complete the stop, no more.
    decoded = FakeTokenizer().decode(result.ids, skip_special_tokens=True)
    assert stop in decoded
    assert stop not in FakeTokenizer().decode(result.ids[:-1], skip_special_tokens=True)
    kept = run(tree, max_new_tokens=len(text), stop=(stop,), no_stop_trim=True)
    assert kept.text == whole[: whole.index(stop)] + stop


@pytest.mark.parametrize("tree", [LINEAR, WIDE])
def test_case_03_eos_inside_the_accepted_path_commits_nothing_beyond_it(scripted_text: Any, tree: TreeConfig) -> None:
    scripted_text([10, 11, EOS_ID, 12, 13])
    with engine_rig("right", tree=tree) as rig:
        result = rig.run(PROMPT, max_new_tokens=9)
        assert result.ids == [10, 11, EOS_ID]
        assert result.finish.matched == EOS_ID
        assert result.stats.accept_histogram[:3] == [0, 1, 1]
        # The second round accepted [11, EOS] after the anchor 10: the cache holds exactly these.
        (entry,) = rig.engine._scheduler.cache._entries
        assert entry.tokens.tolist() == [*PROMPT, 10, 11, EOS_ID]
        assert entry.draft_length == len(entry.tokens)
        assert rig.target.committed(entry.region, 7).tolist() == [*PROMPT, 10, 11, EOS_ID]


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize(
    ("text", "ids", "matched"),
    [
        ([3, 4, EOS_ID, 5, 6], [3, 4, EOS_ID], EOS_ID),  # "ab" EOS "cd": EOS first
        ([3, 4, 5, EOS_ID, 6], [3, 4, 5], "bc"),  # "abc" EOS: the string first
    ],
)
def test_case_04_the_earliest_of_eos_and_stop_string_wins(
    scripted_text: Any, tree: TreeConfig, text: list[int], ids: list[int], matched: Any
) -> None:
    scripted_text(text)
    result = run(tree, max_new_tokens=9, stop=("bc", "d"))
    assert result.ids == ids
    assert result.finish.matched == matched


@pytest.mark.parametrize("tree", TREES)
def test_case_05_every_cap_is_delivered_exactly(tree: TreeConfig) -> None:
    prompt = (0, 5, 9, 12)
    whole = said(prompt, 60)
    natural_length = whole.index(EOS_ID) + 1 if EOS_ID in whole else 60
    assert 10 < natural_length < 40
    with engine_rig("mixed", tree=tree) as rig:
        for cap in range(1, 41):
            result = rig.run(prompt, max_new_tokens=cap)
            assert result.ids == whole[: min(cap, natural_length)]
            assert result.stats.num_emitted_tokens == len(result.ids)
            assert result.stats.accept_length == len(result.ids) / result.stats.num_rounds
            histogram = result.stats.accept_histogram
            assert sum(i * n for i, n in enumerate(histogram)) == len(result.ids)
            assert result.finish.kind == ("length" if cap < natural_length else "stop")


def test_case_05_a_cap_of_zero_emits_nothing_and_runs_nothing() -> None:
    with engine_rig() as rig:
        result = rig.run(PROMPT, max_new_tokens=0)
        assert (result.ids, result.text, result.finish.kind) == ([], "", "length")
        assert result.stats.num_rounds == 0
        assert rig.target.num_forwards == 0


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("mode", ["right", "mixed"])
def test_case_06_min_tokens_masks_end_ids_at_every_width_alike(scripted_text: Any, tree: TreeConfig, mode: str) -> None:
    scripted_text([EOS_ID, EOS_ID, EOS_ID])
    # With EOS masked the best of the rest is id 0, which nothing was scripted for: 39 follows for ever.
    result = run(tree, mode, min_new_tokens=4, max_new_tokens=8)
    assert result.ids == [0, 39, 39, 39, 39, 39, 39, 39]
    stopped = run(tree, mode, min_new_tokens=1, max_new_tokens=8, stop_token_ids=(39,))
    assert stopped.ids == [0, 39]
    unmasked = run(tree, mode, max_new_tokens=8)
    assert unmasked.ids == [EOS_ID]


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("minimum", range(9))
def test_case_06_a_target_that_always_wants_to_stop_says_the_minimum_and_stops(
    monkeypatch: pytest.MonkeyPatch, tree: TreeConfig, minimum: int
) -> None:
    # The drafts are right as long as end ids are masked: the minimum is reached inside an accepted block.
    logits = np.zeros(fake_target.VOCAB_SIZE, dtype=np.float32)
    logits[[30, EOS_ID]] = 1.0, 2.0
    monkeypatch.setattr(fake_target, "logits_of", lambda state: logits.copy())
    options = {"recordings": [{"prompt_ids": PROMPT, "continuation_ids": [30] * 12}]}
    drafter = ReplayDrafter(depth=5, vocab_size=fake_target.VOCAB_SIZE, options=options)
    with engine_rig(drafter=drafter, tree=tree) as rig:
        assert rig.run(PROMPT, min_new_tokens=minimum, max_new_tokens=12).ids == [30] * minimum + [EOS_ID]


@pytest.mark.parametrize("tree", TREES)
def test_case_06_ignore_eos_decodes_through_it(scripted_text: Any, tree: TreeConfig) -> None:
    scripted_text([10, EOS_ID, 11, EOS_ID, 12])
    result = run(tree, ignore_eos=True, max_new_tokens=5)
    assert result.ids == [10, EOS_ID, 11, EOS_ID, 12]
    assert result.finish.kind == "length"


def test_a_stop_id_leaves_the_text_unless_trimming_is_off(scripted_text: Any) -> None:
    scripted_text([3, 4, 5, 6])
    assert run(WIDE, stop_token_ids=(5,)).text == "ab"
    assert run(WIDE, stop_token_ids=(5,), no_stop_trim=True).text == "abc"


def test_the_end_of_the_text_releases_what_was_held_back(scripted_text: Any) -> None:
    scripted_text([3, 4, 22])  # "ab" and half an emoji
    result = run(WIDE, max_new_tokens=3, stop=("abX",))
    assert result.text == "ab�"
