"""The steps before a replayed sweep measures anything: record, score, calibrate. Resumable at every one.

Knows nothing of documents; progress goes to a callback.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from jetspec_cli.bench.plan import BenchSpec
from jetspec_cli.bench.replay.prediction import Prediction
from jetspec_cli.bench.replay.recorder import record, step_points
from jetspec_cli.bench.replay.scoring import replay_all, row_count
from jetspec_cli.bench.replay.step_cost import StepCost
from jetspec_cli.bench.rows import RowLog
from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.client import ServerClient
from jetspec_engine.errors import ConfigError

# A grid of fewer trees is measured whole in the time that the recording of it would take.
MIN_TREES = 5


def is_replayed(spec: BenchSpec, client: ServerClient) -> bool:
    """Say whether a plan is replayed: as it asks, else when the server records and the grid is large.

    Raises:
        ConfigError: it asks, and the server cannot.
    """
    can_record = client.offers("record")
    if spec.replay is None:
        return can_record and sum(not arm.is_baseline for arm in spec.arms) >= MIN_TREES
    if spec.replay and not can_record:
        raise ConfigError(f"--replay: {client.url} does not record", hint="leave it out: every cell is measured")
    return spec.replay


def predict(
    spec: BenchSpec,
    prompts: Sequence[Prompt],
    client: ServerClient,
    *,
    path: Path | None,
    fingerprint: str,
    report: Callable[[int, int, str], None],
) -> Prediction:
    """Record what is not recorded yet, replay every cell, time the row counts in use, and predict.

    Args:
        path: file of the recordings; None keeps them in memory.
        fingerprint: of the measurement.
        report: told of progress: done, total, label.

    Raises:
        EngineError: a recording or a timing failed.
        UnavailableError: numpy is missing.
    """
    with RowLog(path, fingerprint) as log:
        recordings, notes = record(spec, prompts, client, log, report)
        replayed = replay_all(spec, prompts, recordings)
        trees = {arm: each for arm, each in replayed.items() if not arm.is_baseline}
        points = step_points(
            prompts,
            client,
            log,
            report,
            row_counts=sorted({row_count(each) for each in trees.values()}),
            width=max(tree.width for tree in spec.trees),
            longest=max(one.num_prompt_tokens + len(one.token_ids) for one in recordings.values()),
        )
    return Prediction(spec, replayed, StepCost(points), notes)
