"""Fetches the recordings of a set of prompts and the step times of row counts; both resumable, in one file.

The file is a row log like that of the requests: killed at any moment, what is in it is not asked for again. Knows
nothing of what is made of either.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from jetspec_cli.bench.measure import measure
from jetspec_cli.bench.plan import Arm, BenchSpec, arm_of
from jetspec_cli.bench.replay.step_cost import StepPoint
from jetspec_cli.bench.rows import Row, RowLog
from jetspec_cli.prompts import Prompt, warm_up_prompt
from jetspec_cli.serving.client import ServerClient
from jetspec_engine.config import LINEAR, TreeConfig
from jetspec_engine.errors import EngineError
from jetspec_engine.records import Recording

RECORDING, STEP_COST = "recording", "step cost"
NUM_PASSES = 3
STEP_TOKENS = 48
SHORT_CONTEXT = 64
Report = Callable[[int, int, str], None]


def record(
    spec: BenchSpec, prompts: Sequence[Prompt], client: ServerClient, log: RowLog, report: Report
) -> tuple[dict[str, Recording], list[str]]:
    """Return the recordings by prompt, asking for those that are not there yet, and why some could not be made.

    Such a prompt fails in the measured cells too, where it is counted (case 29).

    Raises:
        EngineError: the server is gone, or nothing can be recorded.
    """
    width = max(tree.width for tree in spec.trees)
    found, notes = {}, []
    for number, prompt in enumerate(prompts, start=1):
        row = log.get(RECORDING, 0, prompt.prompt_id, RECORDING)
        try:
            if row is None:
                made = _record(client, prompt, spec.load.cap(prompt), width)
                row = {**_key(RECORDING, 0, prompt.prompt_id, RECORDING), "recording": made.to_mapping()}
                log.append([row])
            found[prompt.prompt_id] = Recording.from_mapping(row["recording"])
        except EngineError as error:
            if not client.is_alive() or (number == len(prompts) and not found):
                raise
            notes.append(f"{prompt.prompt_id} is not in the predictions: {error.what}")
        report(number, len(prompts), f"{RECORDING}: {prompt.prompt_id}")
    return found, notes


def step_points(
    prompts: Sequence[Prompt],
    client: ServerClient,
    log: RowLog,
    report: Report,
    *,
    row_counts: Iterable[int],
    width: int,
    longest: int,
) -> list[StepPoint]:
    """Time rounds of the linear path and of trees of each row count, in a short and in the longest context.

    The passes go round all of them, so that drift of the machine hits all alike. The text is no measured prompt's
    (R24), and its prefix stays cached: rounds are timed, not prefills.

    Args:
        row_counts: nodes of the trees to time.
        width: of these trees.
        longest: context, in tokens, of the longest recorded answer at its end.
    """
    arms = {arm_of(tree): tree for tree in (LINEAR, *(TreeConfig(width=width, budget=n) for n in row_counts))}
    room = max(1, int(client.info.get("max_seq_len") or longest) - STEP_TOKENS - 1)
    short, long = min(SHORT_CONTEXT, room), min(max(longest - STEP_TOKENS, 2 * SHORT_CONTEXT), room)
    # Contexts that hardly differ would make a slope of their noise.
    contexts = (short, long) if long >= 2 * short else (long,)
    texts = {context: _text(prompts, client, context) for context in contexts}
    plan = [(step, arm, context) for step in range(NUM_PASSES) for arm in arms for context in contexts]
    for number, (step, arm, context) in enumerate(plan, start=1):
        if log.get(STEP_COST, step, str(context), arm.label) is None:
            client.set_tree(arms[arm])
            timed = _time(client, texts[context])
            log.append([{**_key(STEP_COST, step, str(context), arm.label), **timed}])
        report(number, len(plan), f"{STEP_COST}: {arm.label}")
    return [_point(log, arm, context) for arm in arms for context in contexts]


def _record(client: ServerClient, prompt: Prompt, cap: int, width: int) -> Recording:
    ids = client.render(prompt)
    if ids is None:
        raise EngineError(f"{prompt.prompt_id}: the server does not tell its token ids")
    # As before a measured prompt: a cached prefix would cut the prefill elsewhere.
    client.flush_cache()
    return client.record(ids, cap, width)


def _time(client: ServerClient, text: Prompt) -> Mapping[str, Any]:
    done = measure(client, text, STEP_TOKENS, ignores_eos=True)
    if not done.round_s or not done.generation.num_emitted_tokens:
        raise EngineError("the server does not say how long its rounds take, so there is no cost model")
    return {
        "round_s": dict(done.round_s),
        "num_prompt_tokens": done.generation.num_prompt_tokens,
        "num_emitted_tokens": done.generation.num_emitted_tokens,
    }


def _point(log: RowLog, arm: Arm, context: int) -> StepPoint:
    rows = [log.get(STEP_COST, step, str(context), arm.label) for step in range(NUM_PASSES)]
    known = [row for row in rows if row is not None]
    tree = arm.tree
    assert tree is not None
    return StepPoint(
        num_rows=None if arm.is_baseline else tree.budget,
        # Half of the answer is written in the middle of a run.
        context=median(row["num_prompt_tokens"] + row["num_emitted_tokens"] / 2 for row in known),
        seconds=median(row["round_s"]["median"] for row in known),
    )


def _text(prompts: Sequence[Prompt], client: ServerClient, length: int) -> Prompt:
    ids = client.render(warm_up_prompt(prompts)) or ()
    if not ids:
        raise EngineError("the server does not tell token ids, so there is no cost model")
    return Prompt(prompt_id=f"{length} tokens", input_ids=(ids * (length // len(ids) + 1))[:length])


def _key(pairing: str, repeat: int, prompt_id: str, arm: str) -> Row:
    return {"pairing": pairing, "repeat": repeat, "prompt_id": prompt_id, "arm": arm}
