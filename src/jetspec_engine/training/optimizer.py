"""Muon for the matrices and AdamW for the rest, over named parameters; state is plain tensors, saved as they are.

Muon orthogonalises each matrix's momentum by a quintic Newton-Schulz iteration, matrices of one shape together in
one batched product.

Source: Jordan et al., Muon (2024), the iteration's coefficients; Moonshot AI, Moonlight (2025), the 0.2 *
sqrt(max(rows, columns)) scale that gives it AdamW's update size.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NS_ROUNDS = 5
MOMENTUM = 0.95
BETAS = (0.9, 0.95)
EPSILON = 1e-8


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return the nearest semi-orthogonal matrices, approximately: (n, rows, columns) in bfloat16 on CUDA."""
    a, b, c = NS_COEFFICIENTS
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    is_tall = x.shape[1] > x.shape[2]
    if is_tall:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(NS_ROUNDS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return torch.as_tensor(x.mT if is_tall else x).to(matrices.dtype)


class Optimizer:
    """Updates parameters in place. Every number that changes from step to step is a tensor, so that a captured CUDA
    graph of a step stays right.

    Args:
        parameters: leaves with requires_grad.
        use_muon: False trains the matrices with AdamW too, at ``lr``.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        *,
        use_muon: bool,
        weight_decay: float,
    ) -> None:
        self.parameters = parameters
        self.weight_decay = weight_decay
        matrices = [name for name, p in parameters.items() if p.ndim == 2]
        self.muon_names = matrices if use_muon else []
        self.adam_names = [name for name in parameters if name not in self.muon_names]
        self.first = {name: torch.zeros_like(p.detach()) for name, p in parameters.items()}
        self.second = {name: torch.zeros_like(self.first[name]) for name in self.adam_names}
        device = next(iter(parameters.values())).device
        self.num_steps = torch.zeros((), dtype=torch.float64, device=device)

    @torch.no_grad()
    def step(self, grads: Mapping[str, Tensor], lr: Tensor, adam_lr: Tensor) -> None:
        """Apply one update, no host sync.

        Args:
            grads: one a parameter. lr: () float32, of the matrices; adam_lr: of what AdamW holds beside Muon.
        """
        self.num_steps += 1
        if self.muon_names:
            self._muon(grads, lr)
        self._adam(grads, adam_lr if self.muon_names else lr)

    def _muon(self, grads: Mapping[str, Tensor], lr: Tensor) -> None:
        by_shape: dict[torch.Size, list[str]] = {}
        for name in self.muon_names:
            by_shape.setdefault(self.parameters[name].shape, []).append(name)
        for shape, names in by_shape.items():
            fresh = [grads[n] for n in names]
            buffers = [self.first[n] for n in names]
            torch._foreach_lerp_(buffers, fresh, 1 - MOMENTUM)
            pushed = torch._foreach_lerp(fresh, buffers, MOMENTUM)
            updates = orthogonalise(torch.stack(pushed)) * (lr * 0.2 * max(shape) ** 0.5)
            weights = [self.parameters[n] for n in names]
            torch._foreach_mul_(weights, 1 - lr * self.weight_decay)
            torch._foreach_sub_(weights, list(updates.unbind(0)))

    def _adam(self, grads: Mapping[str, Tensor], lr: Tensor) -> None:
        names = self.adam_names
        beta1, beta2 = BETAS
        weights, fresh = [self.parameters[n] for n in names], [grads[n] for n in names]
        first, second = [self.first[n] for n in names], [self.second[n] for n in names]
        torch._foreach_lerp_(first, fresh, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, fresh, fresh, 1 - beta2)
        scale = torch._foreach_div(second, (1 - beta2**self.num_steps).float())
        torch._foreach_sqrt_(scale)
        torch._foreach_add_(scale, EPSILON)
        decayed = [p for p in weights if p.ndim == 2]
        if decayed:
            torch._foreach_mul_(decayed, 1 - lr * self.weight_decay)
        updates = torch._foreach_div(first, scale)
        torch._foreach_mul_(updates, lr / (1 - beta1**self.num_steps).float())
        torch._foreach_sub_(weights, updates)

    def state(self) -> dict[str, Tensor]:
        """Return the state as tensors: ``first/NAME``, ``second/NAME`` and ``num_steps``."""
        moments = {"first": self.first, "second": self.second}
        named = {f"{kind}/{name}": value for kind, values in moments.items() for name, value in values.items()}
        return {**named, "num_steps": self.num_steps}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over a state of the same parameters."""
        for kind, mine in (("first", self.first), ("second", self.second)):
            for name, value in mine.items():
                value.copy_(state[f"{kind}/{name}"])
        self.num_steps.copy_(state["num_steps"])
