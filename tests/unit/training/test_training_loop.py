"""Training lowers the loss, and a run that is cut and resumed is the run that was not."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from jetspec_engine.errors import ArtifactError
from jetspec_engine.training.frozen_target import FrozenTarget
from jetspec_engine.training.head_blocks import HeadBlocks
from jetspec_engine.training.loop import TrainingRun
from jetspec_engine.training.settings import TrainSettings
from jetspec_engine.training.state_file import read_state, write_state


def _settings(**changes: object) -> TrainSettings:
    base = {
        "max_steps": 12, "batch": 4, "short_anchors": 4, "short_depth": 2, "full_anchors": 2, "warmup_steps": 2,
        "log_every": 4, "lr": 5e-3, "chunk": 64,
    }  # fmt: skip
    return TrainSettings(**{**base, **changes})


@pytest.fixture
def make(head: HeadBlocks, parameters: dict, target: FrozenTarget, pools: Callable) -> Callable[..., TrainingRun]:
    def build(start: dict | None = None, **changes: object) -> TrainingRun:
        texts = {"pool": pools(10), "held_out": pools(3, seed=8)}
        return TrainingRun(head, start or parameters, target, **texts, settings=_settings(**changes))

    return build


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_resumed_training_equals_uninterrupted_training(
    make: Callable[..., TrainingRun], parameters: dict, tmp_path: Path, optimizer: str
) -> None:
    whole, first = make(optimizer=optimizer), make(optimizer=optimizer)
    whole.run(lambda _: None)
    first.run(lambda _: None, max_steps=5, checkpoint=tmp_path / "part.safetensors")
    second = make({k: torch.zeros_like(v) for k, v in parameters.items()}, optimizer=optimizer)
    second.restore(tmp_path / "part.safetensors")
    second.run(lambda _: None)
    assert second.position.step == whole.position.step == 12
    for name, value in whole.parameters.items():
        assert torch.equal(value, second.parameters[name]), name


def test_training_lowers_the_loss_and_agrees_more_often(
    make: Callable[..., TrainingRun],
) -> None:
    trainer = make(max_steps=160, log_every=40)
    points: list[dict] = []
    trainer.run(points.append)
    assert [p["step"] for p in points] == [40, 80, 120, 160]
    assert points[-1]["loss"] < 0.8 * points[0]["loss"]
    assert points[-1]["agree_by_depth"][0] > points[0]["agree_by_depth"][0]
    assert trainer.position.curve == points


def test_the_schedule_warms_up_and_falls(make: Callable[..., TrainingRun]) -> None:
    trainer = make(max_steps=100, warmup_steps=10, decay_from=0.5)
    shares = []
    for step in (0, 9, 50, 75, 100):
        trainer.position.step = step
        shares.append(round(trainer.learning_rate_share(), 3))
    assert shares == [0.1, 1.0, 1.0, 0.51, 0.02]


def test_time_is_the_clock_when_no_steps_are_given(
    make: Callable[..., TrainingRun],
) -> None:
    ticks = iter(range(10_000))
    trainer = make(max_steps=None, seconds=30.0, checkpoint_every_s=0.0)
    place = trainer.run(lambda _: None, clock=lambda: float(next(ticks)))
    assert 5 < place.step < 30
    assert place.elapsed_s >= 30


def test_a_checkpoint_of_another_shape_is_refused(make: Callable[..., TrainingRun], tmp_path: Path) -> None:
    trainer = make()
    trainer.save(tmp_path / "a.safetensors")
    tensors, plain = read_state(tmp_path / "a.safetensors", torch.device("cpu"))
    plain["head"]["num_hidden_layers"] = 7
    write_state(tmp_path / "a.safetensors", tensors, plain)
    with pytest.raises(ArtifactError, match="another shape"):
        trainer.restore(tmp_path / "a.safetensors")
    with pytest.raises(ArtifactError, match=r"none\.safetensors"):
        trainer.restore(tmp_path / "none.safetensors")
