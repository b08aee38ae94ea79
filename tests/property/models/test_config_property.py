"""Whatever stands in config.json, reading it gives a configuration or an ArtifactError, never anything else."""

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_engine.errors import ArtifactError
from jetspec_engine.models.config import DecoderConfig
from support.tiny_models import tiny_config

ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
KEYS = [
    *tiny_config("qwen3", sliding_window=8),
    "vocab_size",
    "max_position_embeddings",
    "rope_scaling",
    "rope_parameters",
    "tie_word_embeddings",
    "max_window_layers",
    "mlp_bias",
]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["llama", "mistral", "qwen2", "qwen3"]), st.dictionaries(st.sampled_from(KEYS), ODD, max_size=3))
def test_odd_values_are_read_or_refused(model_type: str, changes: dict[str, Any]) -> None:
    values = {**tiny_config(model_type), "vocab_size": 320, **changes}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(values))
        try:
            config = DecoderConfig.from_folder(folder)
        except ArtifactError as error:
            refusal = error.what
        else:
            refusal = None
            assert len(config.sliding_windows) == config.num_layers
            assert config.num_heads % config.num_kv_heads == 0
            assert all(0 <= token_id < config.vocab_size for token_id in config.eos_token_ids)
    assert refusal is None or ("config.json" in refusal and "\n" not in refusal)
