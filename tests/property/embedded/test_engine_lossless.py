"""Losslessness: whatever the drafter, the tree and the batch, ids and text are those of plain decoding."""

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_engine.config import PLAIN, TREE_RULES, TreeConfig
from support.engine_runs import engine_rig
from support.fake_target import VOCAB_SIZE

MODES = ("right", "wrong", "last", "random", "mixed", "unusable")
STOPS = ("a", "e ", "bc", "th", "é", "日", "\n", "x3", "abc", " th", ". a", "😀")


@dataclass(frozen=True)
class Job:
    """One request: a prompt and the options that end it."""

    prompt: tuple[int, ...]
    options: tuple[tuple[str, Any], ...]


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    prompt = draw(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=24))
    cap = draw(st.integers(0, 48))
    options = {
        "max_new_tokens": cap,
        "min_new_tokens": draw(st.integers(0, min(cap, 20))),
        "stop": tuple(draw(st.lists(st.sampled_from(STOPS), max_size=2))),
        "stop_token_ids": tuple(draw(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=2))),
        "ignore_eos": draw(st.booleans()),
        "no_stop_trim": draw(st.booleans()),
        "skip_special_tokens": draw(st.booleans()),
    }
    return Job(tuple(prompt), tuple(options.items()))


trees = st.builds(
    TreeConfig,
    rule=st.sampled_from(TREE_RULES),
    width=st.integers(1, 6),
    budget=st.one_of(st.none(), st.integers(1, 40)),
    beta=st.sampled_from([-1e6, -1.0, 0.0, 1.0, 1e6]),
    g0=st.sampled_from([-1.0, 0.0, 1.0, 1e6]),
    keep_spine=st.booleans(),
)


settings_of_engines = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(MODES),
        "tree": trees,
        "depth": st.integers(1, 7),
        "seed": st.integers(0, 100),
        "max_running": st.integers(1, 4),
        "page_size": st.sampled_from([1, 8, 16]),
        "prefill_chunk": st.integers(1, 9),
        "num_slots": st.sampled_from([128, 1024]),  # the smaller one makes requests wait for room
    }
)


@settings(deadline=None, max_examples=60)
@given(batch=st.lists(jobs(), min_size=1, max_size=5), setting=settings_of_engines)
def test_R12_R13_texts_equal_plain_decoding(batch: list[Job], setting: dict[str, Any]) -> None:
    context = 64
    with engine_rig("wrong", tree=PLAIN, max_seq_len=context, prefill_chunk=3) as rig:
        plain = []
        for job in batch:
            plain.append(rig.run(job.prompt, **dict(job.options)))
            rig.engine.flush_cache()
    with engine_rig(max_seq_len=context, **setting) as rig:
        drafted = [rig.submit(job.prompt, **dict(job.options)) for job in batch]
        for expected, result in zip(plain, drafted, strict=True):
            result.wait()
            assert result.finish == expected.finish
            assert result.ids == expected.ids
            assert result.text == expected.text
            assert result.stats.num_emitted_tokens == len(result.ids)
