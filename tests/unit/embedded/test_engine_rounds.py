"""Rounds through the whole engine: drafts of every kind, odd numbers, odd budgets, several requests at once."""

import threading

import numpy as np
import pytest

from jetspec_engine.config import LINEAR, PLAIN, TREE_RULES, TreeConfig
from jetspec_engine.draft.scripted import ReplayDrafter
from jetspec_engine.protocol import Candidates
from support import fake_target
from support.engine_runs import WIDE, engine_rig, said

PROMPT = tuple(range(3, 20))
MODES = ("right", "wrong", "last", "random", "mixed", "unusable")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tree", [PLAIN, LINEAR, WIDE, TreeConfig(width=3, budget=40, keep_spine=True)])
def test_every_drafter_gives_the_plain_text(mode: str, tree: TreeConfig) -> None:
    with engine_rig(mode, tree=tree) as rig:
        assert rig.run(PROMPT, max_new_tokens=60, ignore_eos=True).ids == said(PROMPT, 60)


@pytest.mark.parametrize("rule", TREE_RULES)
def test_case_08_paths_of_non_first_children_keep_slots_hidden_states_and_draft_cache_together(rule: str) -> None:
    # accum_logp needs the room to reach a last child, and top2gap's caps drop it: exactness is what is checked there.
    tree = TreeConfig(width=3, budget=200, rule=rule)
    with engine_rig("last", tree=tree, depth=4, max_budget=200) as rig:
        result = rig.run(PROMPT, max_new_tokens=60, ignore_eos=True)
        assert result.ids == said(PROMPT, 60)
        if rule != "top2gap":
            assert result.stats.num_correct_drafts > 30


@pytest.mark.parametrize("mode", MODES)
def test_case_10_the_drafters_length_is_the_committed_length_after_each_round(mode: str) -> None:
    lengths = []
    with engine_rig(mode) as rig:

        def watch() -> None:
            for request in rig.engine._scheduler.running:
                lengths.append((request.session.length, request.length, len(request.ids) - 1))

        rig.drafter.before_propose = watch
        rig.run(PROMPT, max_new_tokens=40, ignore_eos=True)
    assert lengths
    assert all(draft == committed == emitted for draft, committed, emitted in lengths)


@pytest.mark.parametrize("tree", [LINEAR, WIDE])
def test_case_12_always_wrong_costs_rounds_and_always_right_saves_them(tree: TreeConfig) -> None:
    with engine_rig("wrong", tree=tree) as rig:
        wrong = rig.run(PROMPT, max_new_tokens=200, ignore_eos=True)
    assert wrong.ids == said(PROMPT, 200)
    assert wrong.stats.num_rounds == 200
    assert wrong.stats.num_correct_drafts == 0
    assert wrong.stats.accept_rate == 0.0
    with engine_rig("right", tree=LINEAR) as rig:
        right = rig.run(PROMPT, max_new_tokens=200, ignore_eos=True)
    assert right.ids == said(PROMPT, 200)
    assert right.stats.num_rounds == 1 + -(-199 // 6)
    assert right.stats.accept_rate == 1.0


def test_R12_one_verify_a_round_and_no_second_forward() -> None:
    with engine_rig("mixed") as rig:
        result = rig.run(PROMPT, max_new_tokens=50, ignore_eos=True)
        num_prefills = -(-len(PROMPT) // 7)
        assert rig.target.num_forwards == num_prefills + result.stats.num_rounds - 1


def test_plain_decoding_never_calls_the_drafter() -> None:
    with engine_rig("right", tree=PLAIN) as rig:
        result = rig.run(PROMPT, max_new_tokens=20, ignore_eos=True)
        assert rig.drafter.num_calls == 0
        assert result.stats.num_rounds == 20
        assert result.stats.num_proposed_drafts == 0


@pytest.mark.parametrize("tree", [PLAIN, LINEAR, WIDE])
def test_case_13_requests_together_equal_their_solo_texts(tree: TreeConfig) -> None:
    prompts = [tuple(range(3, 3 + n)) for n in (1, 4, 7, 8, 14, 15, 30, 2)]
    with engine_rig("mixed", tree=tree, max_running=3) as rig:
        gate = threading.Event()
        rig.target.before_verify = lambda items: gate.wait(10) and None
        running = [rig.submit(p, max_new_tokens=10 + 7 * i, ignore_eos=True) for i, p in enumerate(prompts)]
        gate.set()
        for i, (prompt, result) in enumerate(zip(prompts, running, strict=True)):
            assert result.wait().ids == said(prompt, 10 + 7 * i)
        assert rig.target.largest_batch == 3


def test_case_14_nan_in_the_target_ends_that_request_and_no_other() -> None:
    def poisoned(first_id: int, position: int) -> bool:
        return first_id == 4 and position == 30

    for tree in (PLAIN, LINEAR, WIDE):
        with engine_rig("right", tree=tree) as rig:
            rig.target.is_poisoned = poisoned
            good = rig.submit(PROMPT, max_new_tokens=50, ignore_eos=True)
            bad = rig.submit(PROMPT[1:], max_new_tokens=50, ignore_eos=True)
            assert good.wait().ids == said(PROMPT, 50)
            assert bad.wait().finish.kind == "error"
            assert "not finite" in bad.finish.message
            # Positions up to 30 are fine: the tokens before the bad one are the same at every width.
            assert bad.ids == said(PROMPT[1:], 31 - len(PROMPT[1:]))
            assert rig.engine.counters()["requests_failed"] == 1


def test_case_14_nan_in_the_drafts_logprobs_costs_acceptance_only() -> None:
    with engine_rig("unusable") as rig:
        result = rig.run(PROMPT, max_new_tokens=30, ignore_eos=True)
        assert result.finish.kind == "length"
        assert result.ids == said(PROMPT, 30)


def test_case_15_ties_go_to_the_lower_id_at_every_width() -> None:
    ids = list(PROMPT)
    num_ties = 0
    for token in said(PROMPT, 60):
        logits = fake_target.logits_of(fake_target.state_of(ids))
        num_ties += int((logits == logits.max()).sum() > 1)
        assert token == int(np.flatnonzero(logits == logits.max())[0])
        ids.append(token)
    assert num_ties > 10
    for tree in (PLAIN, LINEAR, WIDE):
        with engine_rig("mixed", tree=tree) as rig:
            assert rig.run(PROMPT, max_new_tokens=60, ignore_eos=True).ids == said(PROMPT, 60)


@pytest.mark.parametrize(
    ("tree", "most_nodes"),
    [
        (TreeConfig(width=4, budget=None), 6),  # unset: D + 1
        (TreeConfig(width=4, budget=3), 3),  # below the chain
        (TreeConfig(width=4, budget=1), 1),
        (TreeConfig(width=1, budget=64), 6),  # ignored above D + 1
        (TreeConfig(width=1, budget=3), 3),
    ],
)
def test_case_17_R25_odd_budgets_are_defined(tree: TreeConfig, most_nodes: int) -> None:
    rows = []
    with engine_rig("mixed", tree=tree) as rig:
        rig.target.before_verify = lambda items: rows.extend(i.tree.num_nodes for i in items if not i.logits_from)
        assert rig.run(PROMPT[:6], max_new_tokens=40, ignore_eos=True).ids == said(PROMPT[:6], 40)
        assert rig.engine.info()["tree"]["budget"] == most_nodes
    assert max(rows[1:]) == most_nodes


def test_R11_a_budget_above_the_chain_at_width_1_is_ignored_and_said_once() -> None:
    with engine_rig("mixed", tree=TreeConfig(width=1, budget=64)) as rig:
        assert rig.engine.info()["notes"] == ["tree.budget: 64 at width 1, ignored above the chain's 6"]
    with engine_rig("mixed", tree=LINEAR) as rig:
        assert rig.engine.info()["notes"] == []


def test_R11_width_1_proposes_the_drafters_top_1_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    trees, offered = [], []
    with engine_rig("mixed", tree=LINEAR) as rig:
        propose = rig.drafter.propose

        def watch(sessions: list, anchors: list[int], width: int) -> list[Candidates]:
            offers = propose(sessions, anchors, width)
            offered.extend([*anchors, *offers[0].tokens[:, 0].tolist()] for _ in offers)
            return offers

        monkeypatch.setattr(rig.drafter, "propose", watch)
        rig.target.before_verify = lambda items: trees.extend(i.tree for i in items)
        rig.run(PROMPT[:3], max_new_tokens=30, ignore_eos=True)
    _, *rounds = trees
    assert all(tree.is_chain for tree in rounds)
    # The last round may be cut by the cap, or draft nothing.
    assert len(rounds) - len(offered) in (0, 1)
    for tree, offer in zip(rounds, offered, strict=False):
        assert tree.tokens.tolist() == offer[: tree.num_nodes]
    assert max(tree.num_nodes for tree in rounds) == 6


def test_R39_a_draft_beyond_the_vocabulary_is_an_error_not_another_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_rig("right") as rig:
        propose = rig.drafter.propose

        def bad(*args: object) -> list[Candidates]:
            offers = propose(*args)
            offers[0].tokens[2, 0] = fake_target.VOCAB_SIZE
            return offers

        monkeypatch.setattr(rig.drafter, "propose", bad)
        result = rig.run(PROMPT, max_new_tokens=30)
        assert result.finish.kind == "error"
        assert "token id 40, expected [0, 39]" in result.finish.message


def test_phase_times_and_round_times_are_recorded() -> None:
    with engine_rig("mixed") as rig:
        stats = rig.run(PROMPT, max_new_tokens=30, ignore_eos=True).stats
    assert set(stats.phase_s) == {"prefill", "draft", "build", "verify", "accept", "commit"}
    assert len(stats.round_s) == stats.num_rounds - 1
    decoding = sum(seconds for name, seconds in stats.phase_s.items() if name != "prefill")
    assert decoding == pytest.approx(sum(stats.round_s))
    assert min(stats.queue_s, stats.prefill_s, stats.decode_s) > 0


def test_logprobs_of_emitted_tokens_come_from_their_own_nodes() -> None:
    def expected(ids: list[int]) -> np.ndarray:
        logits = fake_target.logits_of(fake_target.state_of(ids)).astype(np.float64)
        return logits - np.log(np.exp(logits).sum())

    for tree in (PLAIN, LINEAR, WIDE):
        with engine_rig("mixed", tree=tree) as rig:
            result = rig.run(PROMPT, max_new_tokens=30, ignore_eos=True, top_k=3)
        logprobs = [entry for event in result.events for entry in event.logprobs]
        assert [entry.token_id for entry in logprobs] == result.ids
        for n, entry in enumerate(logprobs):
            row = expected([*PROMPT, *result.ids[:n]])
            best = sorted(range(len(row)), key=lambda i: (-row[i], i))[:3]
            assert [token for token, _ in entry.top] == best
            assert entry.logprob == pytest.approx(row[entry.token_id], abs=1e-5)
            assert [value for _, value in entry.top] == pytest.approx([row[i] for i in best], abs=1e-5)


def test_case_08_a_dictated_comb_is_verified_as_it_is() -> None:
    expected = said(PROMPT, 60)
    options = {
        "recordings": [{"prompt_ids": PROMPT, "continuation_ids": expected}],
        "rank": 2,
        "is_comb": True,
    }
    drafter = ReplayDrafter(depth=5, vocab_size=fake_target.VOCAB_SIZE, options=options)
    with engine_rig(drafter=drafter, tree=TreeConfig(width=3, budget=16)) as rig:
        result = rig.run(PROMPT, max_new_tokens=60, ignore_eos=True)
    assert result.ids == expected
    assert result.stats.accept_histogram[6] == 9


def test_case_09_many_more_rows_than_depth_touch_no_neighbour() -> None:
    tree = TreeConfig(width=8, budget=128)
    with engine_rig("mixed", tree=tree, depth=15, max_budget=128, max_running=3) as rig:
        running = [rig.submit(PROMPT[n:], max_new_tokens=60, ignore_eos=True) for n in range(5)]
        for n, result in enumerate(running):
            assert result.wait().ids == said(PROMPT[n:], 60)
            assert len(result.stats.accept_histogram) <= 17


def test_R06_the_drafters_own_expectation_is_counted_beside_what_came() -> None:
    tree = TreeConfig(width=2, budget=None, keep_spine=True)
    with engine_rig("right", tree=tree) as rig:
        sure = rig.run(PROMPT, max_new_tokens=61, ignore_eos=True).stats
    with engine_rig("wrong", tree=tree) as rig:
        deceived = rig.run(PROMPT, max_new_tokens=61, ignore_eos=True).stats
    # The same account of itself, and what came of it.
    assert sure.accept_length > 4 * deceived.accept_length
    assert deceived.expected_accept_length > 1.0
    with engine_rig("right", tree=PLAIN) as rig:
        assert rig.run(PROMPT, max_new_tokens=9, ignore_eos=True).stats.expected_tokens == 9.0
    with engine_rig("right", tree=LINEAR) as rig:
        assert np.isnan(rig.run(PROMPT, max_new_tokens=9, ignore_eos=True).stats.expected_tokens)
