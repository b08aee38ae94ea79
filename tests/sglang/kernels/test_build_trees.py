"""The tree kernel against the builders on the CPU, node for node and bit for bit; its layout against the torch one."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    numpy = pytest.importorskip("numpy")
    if tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4):
        pytest.skip("the interpreter needs numpy below 2.4", allow_module_level=True)

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from jetspec_engine.config import TREE_RULES, TreeConfig  # noqa: E402
from jetspec_engine.sglang_backend.kernels.build_trees import build_trees  # noqa: E402
from jetspec_engine.sglang_backend.kernels.tree_buffers import TreeBuffers  # noqa: E402
from jetspec_engine.sglang_backend.node_paths import node_paths  # noqa: E402
from jetspec_engine.tree.batched import build_best_first_batched  # noqa: E402
from jetspec_engine.tree.best_first import build_best_first  # noqa: E402
from jetspec_engine.tree.links import sibling_links  # noqa: E402
from jetspec_engine.tree.mask import ancestor_mask  # noqa: E402
from jetspec_engine.tree.published import build_accum_logp, build_top2gap  # noqa: E402
from jetspec_engine.tree.record import DraftTree  # noqa: E402
from support.tree_cases import assert_same_tree, candidate_sets, random_candidates, tree_configs  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EXAMPLES = settings(derandomize=True, deadline=None, max_examples=300 if DEVICE == "cuda" else 40)
BUILDERS = {"best_first": build_best_first, "top2gap": build_top2gap, "accum_logp": build_accum_logp}


def build(candidates, config, nodes, length=100):
    """Build the trees of several requests at once."""
    tokens = torch.stack([torch.as_tensor(c.tokens) for c in candidates]).to(DEVICE)
    logprobs = torch.stack([torch.as_tensor(c.logprobs) for c in candidates]).to(DEVICE)
    requests, depth, width = tokens.shape
    into = TreeBuffers.allocate(requests=requests, nodes=nodes, depth=depth, width=width, device=DEVICE)
    into.path.fill_(-7)
    into.write_settings(config)
    anchors = torch.arange(requests, device=DEVICE) + 5
    lengths = torch.arange(requests, device=DEVICE, dtype=torch.int32) + length
    return build_trees(anchors, tokens, logprobs, lengths=lengths, into=into)


def row_of(trees, row):
    count = int(trees.num_nodes[row])
    return DraftTree(*(getattr(trees, name)[row, :count].cpu().numpy() for name in
                       ("tokens", "parents", "depths", "logprobs")))  # fmt: skip


def assert_padded(trees, row):
    """What follows the last node is what the batched builder pads with."""
    count = int(trees.num_nodes[row])
    assert trees.is_valid[row].tolist() == [True] * count + [False] * (trees.tokens.shape[1] - count)
    for name, value in {"tokens": 0, "parents": -1, "depths": 0, "first_child": -1, "next_sibling": -1}.items():
        assert (getattr(trees, name)[row, count:] == value).all()
    assert torch.isneginf(trees.logprobs[row, count:]).all()


@EXAMPLES
@given(st.data(), st.sampled_from(TREE_RULES))
def test_R10_R16_trees_equal_the_cpus_for_every_rule(data, rule):
    config = data.draw(tree_configs(rule))
    candidates = data.draw(candidate_sets())
    into = build([candidates], config, nodes=24)
    assert_same_tree(row_of(into.trees, 0), BUILDERS[rule](5, candidates, config))
    assert_padded(into.trees, 0)


@pytest.mark.parametrize("rule", TREE_RULES)
@pytest.mark.parametrize("nodes", [16, 64, 128])
def test_a_real_batch_of_every_size(rule, nodes):
    candidates = [random_candidates(seed) for seed in range(8 if DEVICE == "cuda" else 2)]
    for spine in (False, True):
        config = TreeConfig(rule=rule, width=8, budget=nodes, keep_spine=spine)
        into = build(candidates, config, nodes)
        for row, given_ in enumerate(candidates):
            assert_same_tree(row_of(into.trees, row), BUILDERS[rule](5 + row, given_, config))
            assert_padded(into.trees, row)


@EXAMPLES
@given(candidate_sets(max_depth=6), tree_configs())
def test_every_field_equals_the_batched_builders(candidates, config):
    into = build([candidates, candidates], config, nodes=24, length=31)
    requests = torch.arange(2)
    tokens, logprobs = torch.as_tensor(candidates.tokens), torch.as_tensor(candidates.logprobs)
    depth = tokens.shape[0]
    expected = build_best_first_batched(
        requests + 5, torch.stack([tokens] * 2), torch.stack([logprobs] * 2), num_nodes=24,
        budget=torch.tensor(config.resolve_budget(depth)).clamp(max=24), width=torch.tensor(config.width),
        keep_spine=config.keep_spine,
    )  # fmt: skip
    for field in dataclasses.fields(expected):
        assert torch.equal(getattr(into.trees, field.name).cpu(), getattr(expected, field.name)), field.name
    assert torch.equal(into.path.cpu().long(), node_paths(expected, depth))
    assert torch.equal(into.positions.cpu(), expected.depths + 31 + requests.unsqueeze(1))


@pytest.mark.parametrize("rule", ["top2gap", "accum_logp"])
def test_links_and_mask_of_the_published_rules(rule):
    into = build([random_candidates(3)], TreeConfig(rule=rule, width=4, budget=20), nodes=20)
    parents = into.trees.parents.cpu()
    first_child, next_sibling = sibling_links(parents)
    assert torch.equal(into.trees.first_child.cpu(), first_child)
    assert torch.equal(into.trees.next_sibling.cpu(), next_sibling)
    assert (into.trees.mask[0].cpu().numpy() == ancestor_mask(parents[0].numpy())).all()


def test_R17_settings_change_without_new_buffers():
    candidates = random_candidates(9)
    tokens, logprobs = (torch.as_tensor(part)[None].to(DEVICE) for part in (candidates.tokens, candidates.logprobs))
    into = TreeBuffers.allocate(requests=1, nodes=64, depth=15, width=8, device=DEVICE)
    anchors, lengths = torch.tensor([5], device=DEVICE), torch.tensor([9], device=DEVICE)
    for rule, width, budget in (("best_first", 8, 64), ("top2gap", 7, 33), ("best_first", 1, 64), ("accum_logp", 3, 1)):
        config = TreeConfig(rule=rule, width=width, budget=budget)
        into.write_settings(config)
        build_trees(anchors, tokens, logprobs, lengths=lengths, into=into)
        assert_same_tree(row_of(into.trees, 0), BUILDERS[rule](5, candidates, config))
