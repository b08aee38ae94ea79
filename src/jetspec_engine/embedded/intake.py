"""From a request as it was asked to one the engine can run: checked, its ends resolved, its text begun.

Knows nothing of queues, caches or rounds.
"""

from collections.abc import Callable

from jetspec_engine.embedded.request import ActiveRequest, check_request
from jetspec_engine.embedded.stops import EndRules
from jetspec_engine.models.detokenizer import Detokenizer
from jetspec_engine.protocol import Tokenizer
from jetspec_engine.records import GenerateRequest, StepEvent


def activate(
    request: GenerateRequest,
    on_event: Callable[[StepEvent], None],
    tokenizer: Tokenizer,
    vocab_size: int,
    max_seq_len: int,
) -> ActiveRequest:
    """Return the request ready to be queued. Raises RequestError when it can never run."""
    check_request(request, vocab_size, max_seq_len)
    rules = EndRules.of(request.sampling, tokenizer.eos_token_ids, max_seq_len - len(request.input_ids))
    text = Detokenizer(tokenizer, skip_special_tokens=request.sampling.skip_special_tokens)
    return ActiveRequest(request, on_event, rules, text)
