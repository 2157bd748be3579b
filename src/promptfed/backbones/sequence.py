"""The sequence of tokens that enters the first block, made in bf16 on a GPU by one kernel."""

from typing import Any

import torch
from torch import Tensor

from promptfed.core.kernels import gpus


def fit(x: Tensor, patches: Tensor, token: Tensor, position: Tensor) -> bool:
    """Say whether `in_order` can take patches of images x: class token and positions are shared, and all is frozen."""
    frozen = not any(part.requires_grad for part in (patches, token, position))
    shared = token.dim() == 2 and position.dim() == 2
    return gpus.has_triton(x) and patches.dtype == torch.bfloat16 and frozen and shared


def in_order(first: Tensor, prompts: Tensor, patches: Tensor, position: Tensor) -> Tensor:
    """Return [first, prompts, patches + their position] as one sequence [..., T, width].

    `first` is one for all, [..., 1, width], and so is `position` [M, width]; prompts are [..., K, width] and patches
    [..., M, width].
    """
    made: Tensor = _InOrder.apply(first, prompts, patches, position)  # type: ignore[no-untyped-call]
    return made


class _InOrder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first: Tensor, prompts: Tensor, patches: Tensor, position: Tensor) -> Tensor:
        from promptfed.backbones import kernels

        ctx.count = prompts.shape[-2]
        made = kernels.in_order(first, prompts.reshape(-1, *prompts.shape[-2:]), patches.flatten(0, -3), position)
        return made.view(*patches.shape[:-2], *made.shape[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None, None]:
        return None, grad[..., 1 : 1 + ctx.count, :], None, None
