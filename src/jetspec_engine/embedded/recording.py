"""Records a prompt once for all trees: the greedy answer, and what the drafter offers at each of its tokens.

The answer is decoded plainly, one token a round, by the verbs of a live round; the offer of every round is kept and
not verified. So a round that a tree would begin at any token finds its offer here. Runs on the engine's thread, alone.
Knows nothing of trees' rules: ``tree.replay`` applies those.
"""

from collections.abc import Callable

import torch

from jetspec_engine.embedded.prefix_cache import PrefixCache
from jetspec_engine.embedded.request import ActiveRequest
from jetspec_engine.embedded.round import Parts, Turn, accept, build, commit, draft, prefill, verify
from jetspec_engine.embedded.scheduler import Scheduler
from jetspec_engine.errors import ConfigError, EngineError
from jetspec_engine.protocol import Candidates
from jetspec_engine.records import Recording


def record(request: ActiveRequest, parts: Parts, cache: PrefixCache, should_stop: Callable[[], bool]) -> Recording:
    """Decode a request to its end and return the recording; its prefix is cached as any other's.

    Args:
        request: not yet waiting anywhere; it ends here.
        parts: ``parts.tree.width`` candidates a depth are kept.
        cache: lends the region.
        should_stop: asked between rounds.

    Raises:
        ConfigError: the drafter dictates whole trees, so that there is nothing to replay.
        EngineError: decoding failed, or was stopped.
    """
    offers: list[Candidates] = []
    # One of its own: a request that arrives meanwhile waits in the engine's, for the engine's tree.
    scheduler = Scheduler(cache, max_running=1)
    scheduler.waiting.append(request)
    try:
        scheduler.admit(parts)
        while request.finish is None:
            if should_stop():
                raise EngineError("record: the engine is closing")
            if request.is_prefilled:
                offers.append(_run_round(request, parts))
            else:
                prefill(request, parts)
    except BaseException as error:
        request.fail(error if isinstance(error, Exception) else EngineError("record: interrupted"))
        raise
    finally:
        scheduler.take_finished()
    if request.finish.kind == "error":
        raise EngineError(request.finish.message)
    return _recording(request, offers, (len(offers), parts.drafter.depth, parts.tree.width))


def _run_round(request: ActiveRequest, parts: Parts) -> Candidates:
    """Emit one token; return what the drafter offered for those after it."""
    turn = Turn(request=request, depth=parts.drafter.depth)
    draft([turn], parts)
    offer, turn.candidates = turn.candidates, None
    if offer is None and request.finish is None:
        raise ConfigError("record: this drafter dictates whole trees, there are no candidates to keep")
    build([turn], parts)
    verify([turn], parts)
    accept([turn])
    commit([turn], parts)
    if request.finish is not None and request.finish.kind == "error":
        raise EngineError(request.finish.message)
    assert offer is not None
    return offer


def _recording(request: ActiveRequest, offers: list[Candidates], shape: tuple[int, int, int]) -> Recording:
    tokens = [offer.tokens for offer in offers]
    logprobs = [offer.logprobs for offer in offers]
    return Recording(
        num_prompt_tokens=request.num_prompt,
        token_ids=tuple(request.ids[request.num_prompt :]),
        cap=request.rules.cap,
        shape=shape,
        tokens=torch.stack(tokens).to(torch.int32).numpy().astype("<i4").tobytes() if tokens else b"",
        logprobs=torch.stack(logprobs).float().numpy().astype("<f4").tobytes() if logprobs else b"",
    )
