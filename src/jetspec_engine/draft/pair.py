"""Whether a head and a target belong together, decided from their configurations before anything is loaded.

Knows neither weights nor families: a target is anything with the few facts named here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from jetspec_engine.draft.config import HeadConfig
from jetspec_engine.draft.tokenizer_identity import TOKENIZER_NAME, first_difference
from jetspec_engine.errors import ArtifactError


class TargetFacts(Protocol):
    """What is asked of a target's configuration; ``models.config.DecoderConfig`` has it all."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def max_position_embeddings(self) -> int: ...
    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, kw_only=True)
class PairReport:
    """What follows from a pair that fits.

    Attributes:
        max_seq_len: longest sequence to serve; both models were made for it.
        limited_by: "head" when its context is the shorter one, else "target".
    """

    max_seq_len: int
    limited_by: str

    @property
    def notice(self) -> str:
        """One line to show once when the head shortens the context, else empty."""
        if self.limited_by == "target":
            return ""
        return f"context limited to {self.max_seq_len} tokens: the draft head was made for no more"


def check_pair(
    head: HeadConfig,
    target: TargetFacts,
    *,
    where: str = "config.json",
    head_folder: Path | None = None,
    target_folder: Path | None = None,
) -> PairReport:
    """Refuse a head that was not made for this target.

    Args:
        head: the head's configuration.
        target: the target's.
        where: the head's configuration file, for messages.
        head_folder: compared by its ``tokenizer.json`` when it has one and ``target_folder`` is given.
        target_folder: the target's folder.

    Raises:
        ArtifactError: one line naming file, key, value and expectation.
    """
    expectations = (
        ("hidden_size", head.hidden_size, target.hidden_size),
        ("vocab_size", head.vocab_size, target.vocab_size),
        ("num_target_layers", head.num_target_layers, target.num_layers),
    )
    for key, value, expected in expectations:
        if value != expected:
            raise _error(where, key, value, f"the target's {expected}")
    # HeadConfig has compared these with its own numbers; a target is checked against here whatever made the config.
    if max(head.target_layer_ids) >= target.num_layers:
        raise _error(where, "target_layer_ids", list(head.target_layer_ids), f"layers below {target.num_layers}")
    if head.mask_token_id >= target.vocab_size:
        raise _error(where, "mask_token_id", head.mask_token_id, f"an id below the target's {target.vocab_size}")
    _check_special_tokens(head, target, where)
    if head_folder is not None and target_folder is not None:
        _check_tokenizer(head_folder / TOKENIZER_NAME, target_folder / TOKENIZER_NAME)
    lengths = {"target": target.max_position_embeddings, "head": head.max_position_embeddings}
    limited_by = "head" if lengths["head"] < lengths["target"] else "target"
    return PairReport(max_seq_len=lengths[limited_by], limited_by=limited_by)


def _check_special_tokens(head: HeadConfig, target: TargetFacts, where: str) -> None:
    """A file without bos or eos says nothing about them; one that names a sibling model's is refused."""
    if head.bos_token_id is not None and target.bos_token_id is not None and head.bos_token_id != target.bos_token_id:
        raise _error(where, "bos_token_id", head.bos_token_id, f"the target's {target.bos_token_id}")
    strangers = [token for token in head.eos_token_ids if token not in target.eos_token_ids]
    if strangers and target.eos_token_ids:
        raise _error(where, "eos_token_id", strangers[0], f"one of the target's {list(target.eos_token_ids)}")


def _check_tokenizer(ours: Path, theirs: Path) -> None:
    difference = first_difference(ours, theirs) if ours.exists() else ""
    if difference:
        raise ArtifactError(f"{ours}: {difference}")


def _error(where: str, key: str, value: object, expected: str) -> ArtifactError:
    hint = "this head was made for another target: see `jetspec models list`"
    return ArtifactError(f"{where}: {key}: {value}, expected {expected}", hint=hint)
