"""A target's tensors from a folder's safetensors files, each checked against the configuration.

Knows no forward. Never unpickles: ``.bin`` and ``.pt`` files are refused. Files are memory-mapped, so a tensor
already in the wanted dtype costs no copy on the CPU.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from jetspec_engine.errors import ArtifactError, system_error
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.expert_names import single_experts
from jetspec_engine.models.json_file import JsonFile
from jetspec_engine.models.tensor_table import expected_tensors

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
STORED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Old checkpoints carry the rotary frequencies, which follow from the configuration.
IGNORED_SUFFIX = ".rotary_emb.inv_freq"
# Parts of some checkpoints that plain text decoding has no use for: vision towers, multi-token-prediction layers.
IGNORED_PREFIXES = ("visual.", "mtp.")
# Models that also see pictures keep the text model one level deeper.
TEXT_PREFIX = "language_model."


def load_weights(
    folder: str | Path, config: DecoderConfig, *, dtype: torch.dtype, device: str | torch.device = "cpu"
) -> dict[str, torch.Tensor]:
    """Return every tensor of the target.

    Args:
        folder: a Hugging Face model folder with one safetensors file or shards with an index.
        config: the folder's configuration.
        dtype: of the returned tensors. On the CPU a tensor stored in it stays a view of the mapped file: it may be
            read only, and the file must not be changed in place while it lives.
        device: where to put them.

    Returns:
        Names as in ``tensor_table.expected_tensors`` (no leading ``model.``; no ``lm_head.weight`` when tied).

    Raises:
        ArtifactError: a missing, truncated or unsafe file; a tensor that is missing, unknown, of another shape or
            kind, or not finite. The message names file, tensor, value and expectation.
    """
    folder = Path(folder)
    expected = expected_tensors(config)
    tensors: dict[str, torch.Tensor] = {}
    for where, name, tensor in stored_tensors(folder, config):
        if name in tensors:
            raise ArtifactError(f"{where}: given twice, expected once")
        if name == "lm_head.weight" and config.is_embedding_tied:
            expected[name] = expected["embed_tokens.weight"]
        if name in expected:
            check_tensor(where, tensor, expected[name])
            tensors[name] = tensor.to(device=device, dtype=dtype)
        elif not name.endswith(IGNORED_SUFFIX) and not name.startswith(IGNORED_PREFIXES):
            raise ArtifactError(f"{where}: unknown tensor, expected those of a {config.model_type} model")
    check_complete(folder, tensors, expected)
    if config.is_embedding_tied:
        drop_tied_copy(folder, tensors)
    return tensors


def stored_tensors(folder: Path, config: DecoderConfig) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yield file and stored name for messages, our name, and the tensor, of everything in the folder's files."""
    for path, mapped in find_files(folder):
        for stored_name, stored in read_tensors(path, mapped):
            where = f"{path}: {stored_name}"
            name = stored_name.removeprefix("model.").removeprefix(TEXT_PREFIX)
            for own_name, tensor in single_experts(name, stored, config, where):
                yield where, own_name, tensor


def write_weights(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Write tensors under a folder's own names. Raises OSError, also for a full disk."""
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise system_error(error, path) from error


def check_complete(folder: Path, tensors: dict[str, torch.Tensor], expected: dict[str, tuple[int, ...]]) -> None:
    """Raise ArtifactError when an expected tensor was in no file."""
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise ArtifactError(
            f"{folder}: {missing[0]}: missing, expected {list(expected[missing[0]])}",
            hint=f"{len(missing)} of {len(expected)} tensors are missing",
        )


def find_files(folder: Path) -> list[tuple[Path, frozenset[str] | None]]:
    """Return the folder's safetensors files with the tensor names the index maps to each (None without an index).

    Raises:
        ArtifactError: no safetensors files, or an index that names a file outside the folder.
    """
    if (folder / SINGLE_FILE).exists():
        return [(folder / SINGLE_FILE, None)]
    if not (folder / INDEX_FILE).exists():
        pickles = sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
        hint = f"{pickles[0].name} is a pickle and is never loaded: convert it to safetensors" if pickles else ""
        raise ArtifactError(f"{folder}: no weights, expected {SINGLE_FILE} or {INDEX_FILE}", hint=hint)
    index = JsonFile.read(folder / INDEX_FILE)
    weight_map = index.values.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        index.refuse("weight_map", "an object of tensor names to file names")
    files: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        is_plain = isinstance(file, str) and Path(file).name == file and "\\" not in file and ":" not in file
        if not is_plain or not file.endswith(".safetensors"):
            raise ArtifactError(f"{index.name}: {name}: {file!r}, expected the name of a .safetensors file beside it")
        files.setdefault(file, set()).add(name)
    return [(folder / file, frozenset(names)) for file, names in sorted(files.items())]


def read_tensors(path: Path, mapped: frozenset[str] | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of one file as views of its mapping.

    Raises:
        ArtifactError: the file is missing or broken, or holds other tensors than the index says.
    """
    # Whoever opens a pipe waits for somebody to write.
    if path.exists() and not path.is_file():
        raise ArtifactError(f"{path}: no regular file, expected a safetensors file")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            names = list(file.keys())
            strays = sorted(mapped.symmetric_difference(names)) if mapped is not None else []
            if strays:
                is_extra = strays[0] in names
                raise ArtifactError(
                    f"{path}: {strays[0]}: {'not in' if is_extra else 'missing, though in'} {INDEX_FILE}"
                )
            for name in names:
                yield name, file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise ArtifactError(f"{path}: not a readable safetensors file: {error}") from error


def check_tensor(where: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raise ArtifactError unless the tensor has the shape, a float dtype and finite values only."""
    if tuple(tensor.shape) != shape:
        raise ArtifactError(f"{where}: shape {list(tensor.shape)}, expected {list(shape)}")
    if tensor.dtype not in STORED_DTYPES:
        kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in STORED_DTYPES)
        raise ArtifactError(f"{where}: {str(tensor.dtype).removeprefix('torch.')}, expected one of {kinds}")
    # One pass and no temporary: a NaN anywhere makes both ends NaN.
    ends = torch.stack(torch.aminmax(tensor))
    if not torch.isfinite(ends).all():
        count = int((~torch.isfinite(tensor)).sum())
        raise ArtifactError(f"{where}: {count} of {tensor.numel()} values are NaN or infinite, expected finite values")


def drop_tied_copy(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Remove an ``lm_head.weight`` stored beside a tied embedding; it must be the same matrix."""
    copy = tensors.pop("lm_head.weight", None)
    if copy is not None and not torch.equal(copy, tensors["embed_tokens.weight"]):
        raise ArtifactError(
            f"{folder}: lm_head.weight differs from embed_tokens.weight, expected the same matrix",
            hint="config.json says tie_word_embeddings: true",
        )
