"""User turns that make the target write varied text: templates filled at random, and openings it continues itself.

The seeds are our own sentences (``seeds.toml``); no outside data. Held-out prompts are kept out by ``HeldOut``.
"""

import random
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch
from torch import Tensor

NUMBER_SLOTS = {"n": (2, 99), "m": (2, 99), "k": (2, 99), "big": (100, 999)}
NGRAM = 8
STYLE_SHARE = 0.5
OPEN_SHARE = 0.35
OTHER_PREFIX_SHARE = 0.1
MAX_TOKENS = 120


@dataclass(frozen=True)
class UserTurn:
    """One user turn; an open one is to be continued by the target."""

    text: str
    is_open: bool


@dataclass(frozen=True)
class ChatFormat:
    """The text around a user turn, as the target's chat template gives it.

    Attributes:
        prefixes: before the turn; the first one (the template's default) is used for most rows.
        suffix: after the turn, up to where the answer starts; it opens with the end-of-turn token.
        end_id: the token that ends a turn.
    """

    prefixes: tuple[str, ...]
    suffix: str
    end_id: int


@dataclass
class PromptTable:
    """Encoded prompts: tokens (P, F) int64 zero-padded, lengths (P,), is_open (P,) bool, all on one device."""

    tokens: Tensor
    lengths: Tensor
    is_open: Tensor


class HeldOut:
    """Recognises prompts that must not be trained on: the same words, or eight consecutive words in common."""

    def __init__(self, prompts: Iterable[str]) -> None:
        words = [normalise(p) for p in prompts]
        self._whole = {" ".join(w) for w in words}
        self._grams = {gram for w in words for gram in _grams(w)}

    def has(self, text: str) -> bool:
        """Whether text is, or shares eight words in a row with, a held-out prompt."""
        words = normalise(text)
        return " ".join(words) in self._whole or any(gram in self._grams for gram in _grams(words))


def normalise(text: str) -> list[str]:
    """Split into lower-case words, punctuation dropped."""
    return re.findall(r"\w+", text.lower())


def _grams(words: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + NGRAM]) for i in range(len(words) - NGRAM + 1)]


def load_seeds() -> dict[str, Any]:
    """Read the seeds: families (weight, templates, openings) and slots."""
    text = resources.files("jetspec_engine.training").joinpath("seeds.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def compose(seeds: dict[str, Any], count: int, seed: int) -> list[UserTurn]:
    """Draw user turns: families by weight, complete ones without repeats (up to a few tries)."""
    draw = random.Random(seed)
    families = list(seeds["families"].values())
    weights = [family["weight"] for family in families]
    seen: set[str] = set()
    turns: list[UserTurn] = []
    for family in draw.choices(families, weights, k=count):
        if draw.random() < OPEN_SHARE:
            turns.append(UserTurn(draw.choice(family["openings"]), is_open=True))
            continue
        for _ in range(4):
            text = fill(draw.choice(family["templates"]), seeds["slots"], draw)
            if draw.random() < STYLE_SHARE:
                text = f"{text} {draw.choice(seeds['styles'][family['styles']])}"
            if text not in seen:
                seen.add(text)
                turns.append(UserTurn(text, is_open=False))
                break
    return turns


def fill(template: str, slots: dict[str, list[str]], draw: random.Random) -> str:
    """Replace every {slot} by a random filler."""

    def pick(match: re.Match[str]) -> str:
        name = match[1]
        return str(draw.randint(*NUMBER_SLOTS[name])) if name in NUMBER_SLOTS else draw.choice(slots[name])

    return re.sub(r"\{(\w+)\}", pick, template)


def encode_turns(
    turns: Sequence[UserTurn],
    chat: ChatFormat,
    encode: Callable[[list[str]], list[list[int]]],
    *,
    device: torch.device,
    seed: int,
) -> PromptTable:
    """Put the turns in the chat format and encode them; longer ones than ``MAX_TOKENS`` are dropped."""
    draw = random.Random(seed)
    texts = []
    for turn in turns:
        is_other = len(chat.prefixes) > 1 and draw.random() < OTHER_PREFIX_SHARE
        texts.append((draw.choice(chat.prefixes[1:]) if is_other else chat.prefixes[0]) + turn.text)
    pairs = [(ids, turn.is_open) for ids, turn in zip(encode(texts), turns, strict=True) if len(ids) <= MAX_TOKENS]
    width = max(len(ids) for ids, _ in pairs)
    tokens = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in pairs], dtype=torch.long)
    return PromptTable(
        tokens.to(device),
        torch.tensor([len(ids) for ids, _ in pairs], device=device),
        torch.tensor([is_open for _, is_open in pairs], device=device),
    )
