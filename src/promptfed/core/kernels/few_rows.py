"""An affine map of few rows by many weights, for every client of a stack: reading the weights is all the work."""

from typing import Any

import torch
from torch import Tensor

from promptfed.core.kernels.patches import ALIGNED, padded


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Affine map: x [C, N, I], weight [C, O, I], bias [C, O] -> [C, N, O]."""
    out: Tensor = _FewRows.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


def _filled(x: Tensor) -> Tensor:
    return padded(x, 0, -x.shape[-2] % ALIGNED)


class _FewRows(torch.autograd.Function):
    """Its gradients are contiguous: the update reads that of the weights, and the layer before that of the rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows = _filled(x)
        ctx.save_for_backward(x, weight, rows)
        return torch.baddbmm(bias.unsqueeze(-1), weight, rows.mT).mT[:, : x.shape[-2]]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight, rows = ctx.saved_tensors
        if torch.is_grad_enabled():  # someone differentiates the gradient: it must depend on x itself
            rows = _filled(x)
        grad = _filled(grads[0])
        needs = ctx.needs_input_grad
        return (
            grad[:, : x.shape[-2]] @ weight if needs[0] else None,
            grad.mT @ rows if needs[1] else None,
            grads[0].sum(1) if needs[2] else None,
        )
