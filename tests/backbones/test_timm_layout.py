"""ViTs in timm's layout against a forward of a few lines, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import save_file
from torch import Tensor

from promptfed.backbones.pretrained import ViT
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree

WIDTH, DEPTH, HEADS, PATCH = 16, 3, 4, 4
CONFIG: dict[str, Any] = {
    "architecture": "vit_tiny_patch4_16",
    "num_classes": 5,
    "global_pool": "token",
    "model_args": {"num_heads": HEADS},
    "pretrained_cfg": {"input_size": [3, 16, 16], "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]},
}


def tensors(*, scaled: bool = False, registers: int = 0, positions: int = 17, gated: bool = False) -> Tree:
    """Return random weights by timm's names."""
    shapes: dict[str, tuple[int, ...]] = {"cls_token": (1, 1, WIDTH), "pos_embed": (1, positions, WIDTH)}
    shapes |= {"patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH), "patch_embed.proj.bias": (WIDTH,)}
    shapes |= {"reg_token": (1, registers, WIDTH)} if registers else {}
    maps = {"attn.qkv": (48, 16), "attn.proj": (16, 16), "mlp.fc1": (80 if gated else 40, 16), "mlp.fc2": (16, 40)}
    for n in range(DEPTH):
        for norm in ("norm1", "norm2"):
            shapes |= {f"blocks.{n}.{norm}.{part}": (WIDTH,) for part in ("weight", "bias")}
        for name, shape in maps.items():
            shapes |= {f"blocks.{n}.{name}.weight": shape, f"blocks.{n}.{name}.bias": shape[:1]}
        shapes |= {f"blocks.{n}.ls{k}.gamma": (WIDTH,) for k in (1, 2)} if scaled else {}
    shapes |= {"norm.weight": (WIDTH,), "norm.bias": (WIDTH,), "head.weight": (5, WIDTH), "head.bias": (5,)}
    generator = torch.Generator().manual_seed(0)
    return {name: 0.5 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def put(folder: Path, weights: Tree, **changes: Any) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    return str(folder)


def forward(w: Tree, x: Tensor) -> Tensor:
    """Return the class token as timm computes it."""
    z = F.conv2d(x, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=PATCH).flatten(2).mT
    first = [w["cls_token"].expand(len(x), -1, -1)]
    if "reg_token" in w:
        first.append(w["reg_token"].expand(len(x), -1, -1))
    alone = w["pos_embed"].shape[1] == z.shape[1]  # the patches alone have positions
    z = torch.cat([*first, z + w["pos_embed"]], 1) if alone else torch.cat([*first, z], 1) + w["pos_embed"]
    for n in range(DEPTH):
        b = {name.removeprefix(f"blocks.{n}."): value for name, value in w.items()}
        q, k, v = (
            F.linear(
                F.layer_norm(z, (WIDTH,), b["norm1.weight"], b["norm1.bias"], 1e-6),
                b["attn.qkv.weight"],
                b["attn.qkv.bias"],
            )
            .unflatten(-1, (3, HEADS, -1))
            .permute(2, 0, 3, 1, 4)
        )
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        z = z + F.linear(a, b["attn.proj.weight"], b["attn.proj.bias"]) * b.get("ls1.gamma", torch.tensor(1.0))
        h = F.layer_norm(z, (WIDTH,), b["norm2.weight"], b["norm2.bias"], 1e-6)
        h = F.linear(h, b["mlp.fc1.weight"], b["mlp.fc1.bias"])
        h = F.silu(h[..., :40]) * h[..., 40:] if h.shape[-1] == 80 else F.gelu(h)
        z = z + F.linear(h, b["mlp.fc2.weight"], b["mlp.fc2.bias"]) * b.get("ls2.gamma", torch.tensor(1.0))
    return F.layer_norm(z, (WIDTH,), w["norm.weight"], w["norm.bias"], 1e-6)[:, 0]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("vit_tiny_patch4_16", {}),
        ("deit3_tiny_patch4_16", {"scaled": True, "positions": 16}),
        ("vit_tiny_patch4_reg4_dinov2", {"scaled": True, "positions": 16, "registers": 4, "gated": True}),
    ],
)
def test_features_are_those_of_timm(tmp_path: Path, name: str, form: dict[str, Any]) -> None:
    weights = tensors(**form)
    net = ViT((3, 16, 16), 5, put(tmp_path, weights, architecture=name)).to(torch.device("cpu"))
    assert net.statistics == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert (net.arch.width, net.arch.depth, net.arch.heads, net.arch.grid) == (WIDTH, DEPTH, HEADS, (4, 4))
    x = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(net.features({}, x), forward(weights, x), rtol=1e-4, atol=1e-5)


def test_old_files_have_the_statistics_beside_the_architecture(tmp_path: Path) -> None:
    where = put(tmp_path, tensors(), pretrained_cfg=None, mean=[0.0, 0.1, 0.2], std=[1, 1, 1])
    assert ViT((3, 16, 16), 5, where).statistics == ((0.0, 0.1, 0.2), (1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("extra", "changes", "said"),
    [
        (
            {},
            {"architecture": "beit_base_patch16_224"},
            "holds timm's \"beit_base_patch16_224\"; supported are timm's ViTs",
        ),
        ({"dist_token": torch.zeros(1, 1, 16)}, {}, 'has a weight "dist_token", which a plain ViT has not'),
        ({"norm_pre.weight": torch.zeros(16)}, {}, 'has a weight "norm_pre.weight"'),
        ({}, {"global_pool": "avg"}, 'pools by "avg", not by its class token'),
        ({}, {"model_args": {"num_heads": 3}}, "has num_heads=3, which does not divide its width, 16"),
        ({"pos_embed": torch.zeros(1, 7, 16)}, {}, "has 7 positions, which are no square of patches"),
        ({}, {"pretrained_cfg": {"mean": [0.5]}}, "must give mean for three channels"),
    ],
)
def test_what_is_refused(tmp_path: Path, extra: Tree, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(PromptFedError) as refused:
        _ = ViT((3, 16, 16), 5, put(tmp_path, tensors() | extra, **changes)).arch
    assert said in str(refused.value)
