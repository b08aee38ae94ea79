"""Whole rounds of SGLang's real scheduler on a CPU in float32: trees give the tokens of plain decoding.

A process of its own drives a scheduler for every server asked for here (``drive_scheduler``). Plain decoding is a
server without speculation, over the same texts. What needs a GPU (graphs, half precision, pages of more than one
slot) is not covered here.
"""

import json

import pytest

from support.sglang_configs import HEAD
from support.sglang_pair import make_pair
from support.sglang_rounds import CONTEXT, NEW, PROMPTS, SLOTS, drive, ids, script_of, step, tree, words

DEPTH = HEAD["block_size"] - 1
MAIN = 2
SETTINGS = [(8, 16), (8, 64), (1, 0), (4, 33), (2, 4), (7, 8)]
FORCED = 5
WINDOW = 9


TO_THE_LIMIT = [PROMPTS[MAIN], PROMPTS[0], PROMPTS[3]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def plain(pair, tmp_path_factory):
    """Plain decoding: the prompts together, the main one alone, and texts that end at the context's limit."""
    steps = [step(PROMPTS), step([PROMPTS[MAIN]]), step(TO_THE_LIMIT, CONTEXT)]
    job = {"words": words(pair, None, "--disable-radix-cache"), "steps": steps}
    return drive(tmp_path_factory.mktemp("plain"), {"plain": job})["plain"]


@pytest.fixture(scope="module")
def rounds(pair, plain, tmp_path_factory):
    """Every server with trees, in one process: results by job and step."""
    folder = tmp_path_factory.mktemp("rounds")
    sequence = [*PROMPTS[MAIN], *plain[1]["requests"]["0"]["ids"]]
    scripts = {kind: script_of(folder, kind, sequence) for kind in ("full", "deep", "zero")}
    live = folder / "live.json"
    live.write_text("{}")
    steps = [step(PROMPTS, tree=tree(*setting)) for setting in SETTINGS]
    scripted = [step([PROMPTS[MAIN]] * count, tree=tree(8, budget), script=scripts[kind])
                for kind in scripts for count, budget in ((1, 64), (3, 16))]  # fmt: skip
    blank = folder / "blank.json"
    blank.write_text("{}")
    aborted = step(PROMPTS, tree=tree(8, 64), abort=[1, 3], script=str(blank))
    cached = [step([PROMPTS[MAIN]], tree=tree(8, 16)) for _ in range(2)]
    jobs = {
        "trees": {
            "words": words(pair, "JETSPEC", f"--speculative-dflash-draft-script={live}", "--disable-radix-cache"),
            "steps": [*steps, *scripted, aborted, step(TO_THE_LIMIT, CONTEXT, tree=tree(8, 64)),
                      step(TO_THE_LIMIT, CONTEXT, tree=tree(1, 0))],
            "script": str(live),
        },
        "cached": {"words": words(pair, "JETSPEC"), "steps": cached},
        "synchronous": {"words": words(pair, "JETSPEC", "--disable-overlap-schedule", "--disable-radix-cache"),
                        "steps": [step(PROMPTS, tree=tree(8, 64))]},
        "stock": {"words": words(pair, "DFLASH", "--disable-radix-cache"), "steps": [step(PROMPTS)]},
    }  # fmt: skip
    return drive(folder, jobs)


@pytest.mark.parametrize("place", range(len(SETTINGS)), ids=[f"W{w} B{b}" for w, b in SETTINGS])
def test_R01_every_tree_switched_to_at_run_time_gives_plain_tokens(plain, rounds, place):
    result = rounds["trees"][place]
    assert result["switched"]
    assert ids(result) == ids(plain[0])


def test_stock_dflash_gives_the_same_tokens(plain, rounds):
    assert ids(rounds["stock"][0]) == ids(plain[0])


@pytest.mark.parametrize("kind", ["full", "deep", "zero"])
def test_case_08_and_12_scripted_drafts_are_accepted_as_far_as_they_are_right(plain, rounds, kind):
    """Full acceptance; deep paths through nodes that are no first child; none at all."""
    first = len(SETTINGS) + 2 * ["full", "deep", "zero"].index(kind)
    alone, company = rounds["trees"][first : first + 2]
    expected = plain[1]["requests"]["0"]["ids"]
    for result in (alone, company):
        assert all(tokens == expected for tokens in ids(result).values())
    counted = alone["requests"]["0"]
    longest = len(counted["spec_accept_histogram"]) - 1
    assert longest == (1 if kind == "zero" else DEPTH + 1)
    fewest = 1 + -(-(NEW - 1) // (DEPTH + 1))
    assert counted["spec_verify_ct"] == (NEW if kind == "zero" else fewest)


def test_case_11_free_slots_return_after_aborts(rounds):
    frees = [result["free"] for result in rounds["trees"]]
    assert set(frees) == {frees[0]}
    assert frees[0] <= SLOTS
    aborted = rounds["trees"][-3]
    assert set(ids(aborted)) == {"0", "2"}


def test_case_13_those_beside_an_aborted_request_keep_their_tokens(plain, rounds):
    kept, expected = ids(rounds["trees"][-3]), ids(plain[0])
    assert {number: expected[number] for number in kept} == kept


def test_case_18_texts_end_at_the_context_limit_as_plain_ones_do(plain, rounds):
    for result in rounds["trees"][-2:]:
        assert ids(result) == ids(plain[2])
    lengths = {len(prompt) + len(ids(plain[2])[str(number)]) for number, prompt in enumerate(TO_THE_LIMIT)}
    assert lengths == {CONTEXT - 2}  # as far as SGLang goes


def test_case_21_a_cached_prefix_changes_neither_tokens_nor_rounds(plain, rounds):
    cold, warm = rounds["cached"]
    assert cold["requests"] == warm["requests"]
    assert ids(warm)["0"] == plain[1]["requests"]["0"]["ids"]


def test_without_overlap_the_tokens_stay(plain, rounds):
    assert ids(rounds["synchronous"][0]) == ids(plain[0])


def test_the_counters_hold_their_identities(rounds):
    for result in rounds["trees"]:
        for request in result["requests"].values():
            histogram = request["spec_accept_histogram"]
            assert sum(histogram) == request["spec_verify_ct"]
            assert sum(size * count for size, count in enumerate(histogram)) == len(request["ids"])
            assert request["spec_graph_rounds"] == 0
            assert request["spec_eager_rounds"] <= request["spec_verify_ct"] - 1


def test_R14_a_tree_within_sliding_windows_gives_plain_tokens(plain, tmp_path):
    """Every other layer sees a window shorter than the texts: drafted by the head, and deep by script."""
    target = make_pair(tmp_path, window=WINDOW)
    one_pool = ("--disable-radix-cache", "--disable-hybrid-swa-memory")
    steps = [step(PROMPTS), step([PROMPTS[MAIN]])]
    windowed = drive(tmp_path, {"plain": {"words": words(target, None, *one_pool), "steps": steps}})["plain"]
    assert ids(windowed[0]) != ids(plain[0])  # the windows are seen
    script = script_of(tmp_path, "deep", [*PROMPTS[MAIN], *windowed[1]["requests"]["0"]["ids"]])
    draft = f"--speculative-dflash-draft-script={script}"
    jobs = {
        "head": {"words": words(target, "JETSPEC", *one_pool), "steps": [step(PROMPTS, tree=tree(8, 64))]},
        "deep": {"words": words(target, "JETSPEC", draft, *one_pool),
                 "steps": [step([PROMPTS[MAIN]], tree=tree(8, budget)) for budget in (16, 64)]},
    }  # fmt: skip
    found = drive(tmp_path, jobs)
    assert ids(found["head"][0]) == ids(windowed[0])
    for result in found["deep"]:
        assert ids(result) == ids(windowed[1])
    assert len(found["deep"][1]["requests"]["0"]["spec_accept_histogram"]) == DEPTH + 2


def test_acceptance_by_decree(pair, tmp_path):
    """SGLANG_SIMULATE_ACC_LEN: every round gains so many tokens, whatever they are."""
    depths = {"depth_logprobs": [[-0.1, -3.0, -4.0, -5.0]] * DEPTH}
    script = tmp_path / "script.json"
    script.write_text(json.dumps(depths))
    job = {"words": words(pair, "JETSPEC", f"--speculative-dflash-draft-script={script}", "--disable-radix-cache"),
           "steps": [step([PROMPTS[MAIN]], 1 + 4 * FORCED, tree=tree(4, 16))]}  # fmt: skip
    (result,) = drive(tmp_path, {"forced": job}, SGLANG_SIMULATE_ACC_LEN=str(FORCED))["forced"]
    assert result["requests"]["0"]["spec_accept_histogram"] == [0, 1, 0, 0, 0, 4]


def test_rounds_on_the_kernels_themselves(pair, plain, tmp_path):
    """All kernels of a round, in Triton's interpreter: deep paths, in company."""
    sequence = [*PROMPTS[MAIN], *plain[1]["requests"]["0"]["ids"]]
    script = script_of(tmp_path, "deep", sequence)
    job = {"words": words(pair, "JETSPEC", f"--speculative-dflash-draft-script={script}", "--disable-radix-cache"),
           "steps": [step([PROMPTS[MAIN]] * 2, 24, tree=tree(4, 16))]}  # fmt: skip
    (result,) = drive(tmp_path, {"kernels": job}, CPU_ROUNDS_KERNELS="1", TRITON_INTERPRET="1")["kernels"]
    for tokens in ids(result).values():
        assert tokens == plain[1]["requests"]["0"]["ids"][:24]
