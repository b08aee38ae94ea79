"""What JETSPEC cannot run on SGLang, decided from plain facts before anything is loaded.

SGLang checks its own tree algorithms only, and some of its backends ignore a tree mask without a word, so every limit
is repeated here. Imports nothing of sglang: ``compat`` gathers the facts. Knows nothing of how trees are verified.
"""

from dataclasses import dataclass

from jetspec_engine.errors import ConfigError, UnavailableError
from jetspec_engine.sglang_backend.recurrent.limits import RecurrentFacts, check_recurrent

SUPPORTED_VERSION = "0.5.17"
# How a tree is verified differs; that a backend takes a tree at all, and with which page sizes, is what counts here.
TREE_BACKENDS = ("triton", "flashinfer", "fa3", "fa4")
ONE_SLOT_PAGE_BACKENDS = ("fa4",)


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """What a resolved SGLang configuration says, as far as it matters here.

    Attributes:
        max_width: largest W at run time; limits of trees hold where it is more than 1.
        device: cuda, cpu, ...
        attention_backends: of prefill and decode.
        page_size: slots per KV page.
        pp_size: pipeline parallel size.
        disaggregation_mode: null, prefill or decode.
        has_dp_attention, is_mla: data-parallel attention; latent attention.
        recurrent: of a hybrid target, None for one of attention only.
        has_sliding_window: some layer of the target attends within a window only.
        has_draft_window: SGLang's compact draft cache is on.
        draft_path: the head, empty for none.
    """

    max_width: int
    device: str = "cuda"
    attention_backends: tuple[str | None, ...] = ("triton",)
    page_size: int = 1
    pp_size: int = 1
    disaggregation_mode: str = "null"
    has_dp_attention: bool = False
    is_mla: bool = False
    recurrent: RecurrentFacts | None = None
    has_sliding_window: bool = False
    has_draft_window: bool = False
    draft_path: str = "head"


def check_version(version: str) -> None:
    """Raise UnavailableError unless this is the one SGLang whose seams were read and tested."""
    if version != SUPPORTED_VERSION:
        raise UnavailableError(
            f"sglang {version}: expected {SUPPORTED_VERSION}, the version this plugin was made for",
            hint=f"pip install 'sglang=={SUPPORTED_VERSION}'",
        )


def check_server(facts: ServerFacts) -> None:
    """Raise ConfigError, naming the option, for what cannot run at any width or at the widths asked for."""
    if not facts.device.startswith("cuda"):
        raise ConfigError(
            f"--device: {facts.device}, JETSPEC on SGLang needs cuda", hint="jetspec serve --engine embedded"
        )
    if not facts.draft_path:
        raise ConfigError(
            "--speculative-draft-model-path: missing, JETSPEC needs a draft head",
            hint="give the head's folder, or decode without one: leave --speculative-algorithm out",
        )
    if facts.pp_size != 1:
        raise ConfigError(f"--pp-size: {facts.pp_size}, JETSPEC needs 1", hint="use --tp-size")
    if facts.disaggregation_mode != "null":
        raise ConfigError(
            f"--disaggregation-mode: {facts.disaggregation_mode}, JETSPEC drafts where it prefills and decodes",
            hint="leave the option out",
        )
    if facts.has_dp_attention:
        raise ConfigError("--enable-dp-attention: not with JETSPEC", hint="leave the option out")
    if facts.is_mla:
        raise ConfigError("target: latent attention (MLA) is not supported by JETSPEC yet", hint="use plain SGLang")
    if facts.recurrent is not None:
        check_recurrent(facts.recurrent, max_width=facts.max_width)
    if facts.max_width > 1:
        _check_tree(facts)


def _check_tree(facts: ServerFacts) -> None:
    """Refuse what only a chain can do."""
    linear = "or stay linear with --speculative-dflash-tree-width 1 --speculative-dflash-tree-max-width 1"
    for backend in facts.attention_backends:
        if backend not in TREE_BACKENDS:
            raise ConfigError(
                f"--attention-backend: {backend}, expected one of {', '.join(TREE_BACKENDS)} to verify a tree",
                hint=linear,
            )
        if facts.page_size != 1 and backend in ONE_SLOT_PAGE_BACKENDS:
            raise ConfigError(f"--page-size: {facts.page_size}, {backend} verifies trees with page size 1", hint=linear)
    if facts.page_size != 1 and facts.has_sliding_window:
        raise ConfigError(
            f"--page-size: {facts.page_size}, a target with sliding windows verifies trees with page size 1",
            hint=linear,
        )
    if facts.has_draft_window:
        raise ConfigError("--speculative-draft-window-size: not with a tree", hint=linear)
