"""Whether two ``tokenizer.json`` files give the same ids to the same text.

Compares vocabulary, merges and added tokens; ignores what cannot change an id (padding, truncation, file layout).
Knows nothing of heads and targets.
"""

from pathlib import Path
from typing import Any

from jetspec_engine.json_text import read_json

TOKENIZER_NAME = "tokenizer.json"
MAX_TOKENIZER_BYTES = 256 * 2**20


def first_difference(ours: Path, theirs: Path) -> str:
    """Return one line about the first difference of two tokenizer files, empty when they agree.

    Raises:
        ArtifactError: a file is missing or is not JSON.
    """
    left, right = (read_json(path, max_bytes=MAX_TOKENIZER_BYTES) for path in (ours, theirs))
    left_ids, right_ids = _token_ids(left), _token_ids(right)
    for token, token_id in left_ids.items():
        if right_ids.get(token) != token_id:
            return f"token {token!r} is {token_id}, expected {right_ids.get(token)} as in {theirs.parent}"
    if len(left_ids) != len(right_ids):
        return f"{len(left_ids)} tokens, expected {len(right_ids)} as in {theirs.parent}"
    if _merges(left) != _merges(right):
        return f"merges differ, expected those of {theirs.parent}"
    return ""


def _token_ids(document: Any) -> dict[str, Any]:
    model = document.get("model") if isinstance(document, dict) else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, list):  # unigram models list (token, score) pairs in id order
        ids: dict[str, Any] = {str(entry[0]): index for index, entry in enumerate(vocab)}
    else:
        ids = dict(vocab) if isinstance(vocab, dict) else {}
    added = document.get("added_tokens") if isinstance(document, dict) else None
    for token in added or []:
        ids[str(token.get("content"))] = token.get("id")
    return ids


def _merges(document: Any) -> list[str]:
    """Older files write a merge as "a b", newer ones as ["a", "b"]."""
    model = document.get("model") if isinstance(document, dict) else None
    merges = model.get("merges") if isinstance(model, dict) else None
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges or []]
