"""A mixture-of-experts MLP whose result for a token does not depend on the other tokens of the forward.

Every expert is a pair of row-wise layers, so how many tokens reach it changes no token's bits. A token's experts are
chosen by probability, ties by lower id, and their outputs are added in that order in float32. Knows no sequence.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.decoder import LayerFactory
from jetspec_engine.models.elementwise import pairwise_sum_, sigmoid


class ExpertBlock:
    """Routing, experts and the shared expert.

    Args:
        config: of the target, with experts.
        weights: this layer's tensors, names as in ``tensor_table.expert_tensors``.
        make: makes the linear layers.
    """

    def __init__(self, config: DecoderConfig, weights: Mapping[str, Tensor], make: LayerFactory) -> None:
        shape = config.experts
        assert shape is not None
        self._shape = shape
        self._route = make.linear(weights["mlp.gate.weight"])
        self._experts = [_expert(f"mlp.experts.{i}", weights, make) for i in range(shape.num_experts)]
        self._shared = None
        if shape.shared_size is not None:
            gate = make.linear(weights["mlp.shared_expert_gate.weight"])
            self._shared = (*_expert("mlp.shared_expert", weights, make), gate)

    def __call__(self, normed: Tensor, x: Tensor) -> Tensor:
        """Return ``x`` plus the experts' output for the normed states (n, E). Syncs with the host."""
        shares, chosen = choose_experts(self._route(normed), self._shape.num_chosen, is_normed=self._shape.is_normed)
        outputs = self._run(normed, chosen).float()
        total = outputs[:, 0] * shares[:, :1]
        for rank in range(1, self._shape.num_chosen):
            total = total + outputs[:, rank] * shares[:, rank : rank + 1]
        if self._shared is not None:
            inner, outer, gate = self._shared
            total = total + outer(inner(normed)).float() * sigmoid(gate(normed).float())
        return x + total.to(x.dtype)

    def _run(self, normed: Tensor, chosen: Tensor) -> Tensor:
        """Return each token's experts' outputs (n, chosen, E), unweighted; an expert runs once on all its tokens."""
        ids, order = chosen.flatten().sort(stable=True)
        rows = normed[order // chosen.shape[1]]
        outputs = torch.empty_like(rows)
        first = 0
        for expert, count in enumerate(ids.bincount(minlength=len(self._experts)).tolist()):
            if not count:
                continue
            inner, outer = self._experts[expert]
            outputs[first : first + count] = outer(inner(rows[first : first + count]))
            first += count
        by_token = torch.empty_like(outputs)
        by_token[order] = outputs
        return by_token.view(*chosen.shape, -1)


def choose_experts(logits: Tensor, count: int, *, is_normed: bool) -> tuple[Tensor, Tensor]:
    """Return the shares (n, count) float32, rounded to the logits' dtype, and ids (n, count) of each token's experts.

    Likeliest first, ties by lower id.

    Args:
        logits: (n, experts).
        count: experts to choose.
        is_normed: scale the shares of those chosen to a sum of one.
    """
    values = logits.float()
    weights = torch.exp(values - values.amax(-1, keepdim=True))
    probabilities = weights / pairwise_sum_(weights.clone(), -1)
    ordered, ids = probabilities.sort(dim=-1, descending=True, stable=True)
    shares = ordered[:, :count]
    if is_normed:
        shares = shares / pairwise_sum_(shares.clone(), -1)
    return shares.to(logits.dtype).float(), ids[:, :count]


def _expert(prefix: str, weights: Mapping[str, Tensor], make: LayerFactory) -> tuple:
    inner = make.gated(weights[f"{prefix}.gate_proj.weight"], weights[f"{prefix}.up_proj.weight"])
    return inner, make.linear(weights[f"{prefix}.down_proj.weight"])
