"""Whole rounds of hybrid and expert targets in SGLang's real scheduler, on a CPU in float32: trees give plain tokens.

Case 16 and R13: Gated DeltaNet's states follow the paths of a tree, and SGLang commits the accepted node's. What keeps
states here is written by another hand than the engine's (``cpu_rounds/sgl_kernel/mamba.py``), and two faults must show.
"""

import pytest

from support.sglang_hybrid import BLOCK, make_hybrid_pair
from support.sglang_rounds import PROMPTS, drive, ids, script_of, step, tree, words

FAMILIES = ["qwen3-next", "qwen3.5-moe", "qwen3.5", "qwen3-moe"]
HYBRID = {"CPU_ROUNDS_HYBRID": "1", "TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1"}
MAIN, NEW = 2, 32
SETTINGS = [(8, 16), (2, 4), (1, 0)]
KINDS = ["full", "deep", "zero"]
PLAIN = [step(PROMPTS, NEW), step([PROMPTS[MAIN]], NEW)]
OFF = "--disable-radix-cache"


def pair_of(folder, family):
    return make_hybrid_pair(folder, family)


def scripts(folder, plain):
    sequence = [*PROMPTS[MAIN], *plain[1]["requests"]["0"]["ids"]]
    live = folder / "live.json"
    live.write_text("{}")
    return str(live), {kind: script_of(folder, kind, sequence) for kind in KINDS}


@pytest.fixture(scope="module", params=FAMILIES)
def rounds(request, tmp_path_factory):
    """Plain decoding and a server with trees of one family: results by step."""
    folder = tmp_path_factory.mktemp("rounds")
    pair = pair_of(folder / "pair", request.param)
    plain = drive(folder, {"plain": {"words": words(pair, None, OFF), "steps": PLAIN}}, **HYBRID)["plain"]
    live, shapes = scripts(folder, plain)
    steps = [step(PROMPTS, NEW, tree=tree(*setting)) for setting in SETTINGS]
    for kind in KINDS:
        steps += [step([PROMPTS[MAIN]], NEW, tree=tree(8, 64), script=shapes[kind]),
                  step([PROMPTS[MAIN]] * 3, NEW, tree=tree(8, 16), script=shapes[kind])]  # fmt: skip
    more = (f"--speculative-dflash-draft-script={live}", OFF)
    job = {"words": words(pair, "JETSPEC", *more), "steps": steps, "script": live}
    return plain, drive(folder, {"trees": job}, **HYBRID)["trees"]


@pytest.mark.parametrize("place", range(len(SETTINGS)), ids=[f"W{w} B{b}" for w, b in SETTINGS])
def test_R13_trees_give_plain_tokens(rounds, place):
    plain, trees = rounds
    assert ids(trees[place]) == ids(plain[0])


@pytest.mark.parametrize("kind", KINDS)
def test_case16_deep_full_and_no_acceptance_commit_the_right_state(rounds, kind):
    plain, trees = rounds
    first = len(SETTINGS) + 2 * KINDS.index(kind)
    expected = plain[1]["requests"]["0"]["ids"]
    for result in trees[first : first + 2]:
        assert all(tokens == expected for tokens in ids(result).values())
    longest = len(trees[first]["requests"]["0"]["spec_accept_histogram"]) - 1
    if kind == "zero":  # the head's own candidates stand behind the script's four, and may be right by luck
        assert longest <= 2
    else:
        assert longest == BLOCK


@pytest.mark.parametrize("fault", ["previous", "uncommitted"])
def test_R50_a_state_from_elsewhere_changes_tokens(tmp_path, fault):
    pair = pair_of(tmp_path / "pair", "qwen3-next")
    plain = drive(tmp_path, {"plain": {"words": words(pair, None, OFF), "steps": PLAIN}}, **HYBRID)["plain"]
    live, shapes = scripts(tmp_path, plain)
    job = {"words": words(pair, "JETSPEC", f"--speculative-dflash-draft-script={live}", OFF),
           "steps": [step([PROMPTS[MAIN]], NEW, tree=tree(8, 16), script=shapes["deep"])], "script": live}  # fmt: skip
    (result,) = drive(tmp_path, {"trees": job}, CPU_ROUNDS_FAULT=fault, **HYBRID)["trees"]
    assert ids(result)["0"] != plain[1]["requests"]["0"]["ids"]


def test_rounds_on_the_state_kernels_themselves(tmp_path):
    """All kernels of a hybrid round, in Triton's interpreter: deep paths, in company."""
    pair = pair_of(tmp_path / "pair", "qwen3-next")
    plain = drive(tmp_path, {"plain": {"words": words(pair, None, OFF), "steps": PLAIN}}, **HYBRID)["plain"]
    live, shapes = scripts(tmp_path, plain)
    del live
    job = {"words": words(pair, "JETSPEC", f"--speculative-dflash-draft-script={shapes['deep']}", OFF),
           "steps": [step([PROMPTS[MAIN]] * 2, 12, tree=tree(4, 16))]}  # fmt: skip
    (result,) = drive(tmp_path, {"kernels": job}, CPU_ROUNDS_KERNELS="1", **HYBRID)["kernels"]
    for tokens in ids(result).values():
        assert tokens == plain[1]["requests"]["0"]["ids"][:12]
