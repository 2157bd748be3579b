"""What kernels of our own do on a GPU: what torch does, up to rounding."""

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.backbones import float8, fused, transformer
from promptfed.backbones.pretrained import ViT
from promptfed.backbones.transformer import Arch
from promptfed.core import keys, ops, tree
from promptfed.core.kernels import convolved, dropped, gpus, patches

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can see")


def _distance(function: Callable[..., Tensor], shapes: Sequence[tuple[int, ...]]) -> float:
    """Return how far a function and its first and second gradients on the GPU are from the CPU's in double precision.

    It is the largest distance of any of them, as a share of its length and a thousandth.
    """
    found = []
    for device, kind in (("cuda", torch.float32), ("cpu", torch.float64)):
        draw = torch.Generator().manual_seed(0)
        leaves = [torch.randn(shape, generator=draw).to(device, kind).requires_grad_() for shape in shapes]
        out = function(*leaves)
        value = (out * torch.randn(out.shape, generator=draw).to(device, kind)).sum()
        once = torch.autograd.grad(value, leaves, retain_graph=True, materialize_grads=True)
        grads = torch.autograd.grad(value, leaves, create_graph=True, materialize_grads=True)
        bent = torch.stack([grad.square().sum() for grad in grads]).sum()
        twice = torch.autograd.grad(bent, leaves, materialize_grads=True)
        found.append([part.detach().double().cpu() for part in (out, *once, *grads, *twice)])
    return max(float((got - want).norm() / (want.norm() + 1e-3)) for got, want in zip(*found, strict=True))


def _through(arch: Arch, z: Tensor, weights: tree.Tree) -> Tensor:
    """Return the tokens after all blocks, by the fused kernels on a GPU and written out elsewhere."""
    blocks, written = [transformer._own(weights, n) for n in range(arch.depth)], partial(transformer._written, arch)
    if not z.is_cuda:
        return written(z, blocks)
    assert fused.fit(z, weights, arch.heads, arch.mlp)
    return fused.through(z, blocks, arch.heads, arch.eps, written)


def _blocks_apart(lead: tuple[int, ...], tokens: int, heads: int, d: int) -> float:
    arch = Arch(heads * d, 2, heads, 4, 3 * heads * d, (1, 1))
    shapes = transformer.shapes(arch)

    def function(z: Tensor, *values: Tensor) -> Tensor:
        return _through(arch, z, {name: value / 8 for name, value in zip(shapes, values, strict=True)})

    return _distance(function, [(*lead, 2, tokens, heads * d), *((*lead, *shape) for shape in shapes.values())])


@pytest.mark.parametrize("lead", [(), (1,), (3,)])
@pytest.mark.parametrize(("tokens", "heads"), [(65, 8), (5, 2)])
def test_blocks_of_few_kernels_are_the_blocks_written_out(lead: tuple[int, ...], tokens: int, heads: int) -> None:
    assert _blocks_apart(lead, tokens, heads, 16) < 1e-3


@pytest.mark.parametrize("d", [16, 32])
def test_blocks_of_few_kernels_are_near_on_tensor_cores(d: int) -> None:
    torch.set_float32_matmul_precision("high")
    try:
        assert _blocks_apart((3,), 40, 2, d) < 2e-2
    finally:
        torch.set_float32_matmul_precision("highest")


def test_frozen_blocks_are_the_same_function_of_their_tokens() -> None:
    arch, draw = Arch(32, 2, 2, 4, 48, (1, 1)), torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(3, *shape, generator=draw).cuda() / 8 for name, shape in transformer.shapes(arch).items()
    }
    z = torch.randn(3, 2, 11, 32, generator=draw).cuda().requires_grad_()
    frozen = _through(arch, z, weights)
    (alone,) = torch.autograd.grad(frozen.square().sum(), z)
    trained = _through(arch, z, {name: value.clone().requires_grad_() for name, value in weights.items()})
    (together,) = torch.autograd.grad(trained.square().sum(), z)
    with torch.no_grad():
        assert torch.equal(_through(arch, z, weights), trained)
    assert torch.equal(frozen, trained)
    assert torch.equal(alone, together)


def test_clients_may_share_the_weights_of_blocks() -> None:
    arch = Arch(32, 2, 2, 4, 48, (1, 1))
    shapes = transformer.shapes(arch)

    def function(z: Tensor, *values: Tensor) -> Tensor:
        shared = {name: (value / 8).expand(3, *value.shape) for name, value in zip(shapes, values, strict=True)}
        return _through(arch, z, shared)

    assert _distance(function, [(3, 2, 11, 32), *shapes.values()]) < 1e-3


@pytest.mark.parametrize(("clients", "channels", "outputs", "side"), [(1, 3, 8, 12), (3, 3, 8, 12), (2, 32, 200, 9)])
def test_convolutions_by_our_kernels_are_convolutions(clients: int, channels: int, outputs: int, side: int) -> None:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if x.is_cuda:
            return patches.conv2d(x, weight, bias)
        return torch.stack([F.conv2d(*one) for one in zip(x, weight, bias, strict=True)])

    shapes = [(clients, 2, channels, side, side), (clients, outputs, channels, 5, 5), (clients, outputs)]
    assert _distance(function, shapes) < 1e-3
    last = [(clients, 2, side, side, channels), *shapes[1:]]
    assert _distance(lambda x, *own: function(x.movedim(-1, -3), *own), last) < 1e-3


# the first and the last add up weights by a kernel, whose programs share the pixels; the others by columns
POOLED = [(3, 8, 5, 26, 2), (20, 40, 3, 13, 2), (32, 64, 5, 14, 2), (70, 70, 3, 8, 1), (3, 32, 3, 9, 1)]


def _plain(x: Tensor, weight: Tensor, bias: Tensor, pool: int) -> Tensor:
    """Return convolution, pooling and ReLU client by client, by torch's own layers."""
    each = [F.conv2d(*one) for one in zip(x, weight, bias, strict=True)]
    return torch.relu(torch.stack([F.max_pool2d(part, pool) for part in each]))


@pytest.mark.parametrize(("channels", "outputs", "kernel", "side", "pool"), POOLED)
def test_convolutions_with_pooling_and_relu_in_one_are_those_of_torch(
    channels: int, outputs: int, kernel: int, side: int, pool: int
) -> None:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return (convolved.conv2d if x.is_cuda else _plain)(x, weight, bias, pool)

    shapes = [(3, 2, channels, side, side + 1), (3, outputs, channels, kernel, kernel), (3, outputs)]
    assert _distance(function, shapes) < 1e-3
    last = [(3, 2, side, side + 1, channels), *shapes[1:]]
    assert _distance(lambda x, *own: function(x.movedim(-1, -3), *own), last) < 1e-3
    fixed = torch.randn(
        shapes[0], generator=torch.Generator().manual_seed(1)
    )  # images that nobody asks the gradient of
    assert _distance(lambda weight, bias: function(fixed.to(weight), weight, bias), shapes[1:]) < 1e-3


def _with_gradients(function: Callable[..., Tensor], parts: Sequence[Tensor]) -> list[Tensor]:
    """Return the result and the gradients of the sum of its squares, on the CPU."""
    leaves = [part.requires_grad_() for part in parts]
    out = function(*leaves)
    return [part.detach().cpu() for part in (out, *torch.autograd.grad(out.square().sum(), leaves))]


def test_convolutions_on_tensor_cores_are_near_those_of_torch() -> None:
    def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return (ops.conv_relu if x.is_cuda else _plain)(x, weight, bias, 1)

    def pooled(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return (ops.conv_relu if x.is_cuda else _plain)(x, weight, bias, 2)

    draw = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=draw) for shape in ((3, 2, 20, 9, 9), (3, 40, 20, 3, 3), (3, 40)))
    parts = [x, weight / 13, bias + 10]  # with this bias ReLU lets everything through
    want = [pooled(*parts), *_with_gradients(plain, parts)]
    parts = [part.detach().cuda() for part in parts]
    torch.set_float32_matmul_precision("high")
    try:
        assert convolved.fits(*parts[:2])
        found = [pooled(*parts).cpu(), *_with_gradients(plain, parts)]
    finally:
        torch.set_float32_matmul_precision("highest")
    for got, one in zip(found, want, strict=True):
        assert (got - one).norm() / one.norm() < 3e-3


@pytest.mark.parametrize("shape", [(7,), (4, 129), (10, 1500)])
def test_draws_have_the_same_bits_as_on_the_cpu(shape: tuple[int, ...]) -> None:
    salts = torch.tensor([keys.key(0, "test", client) for client in range(3)])
    for given in (salts, salts[0]):
        assert keys.uniform(given.cuda(), shape).cpu().equal(keys.uniform(given, shape))


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 40, 5, 6), (3, 70, 9, 9), (2, 3, 8, 1, 1), (2, 3, 130)])
def test_dropout_by_one_kernel_is_dropout(shape: tuple[int, ...], last: bool) -> None:
    draw, lead = torch.Generator().manual_seed(0), 2 if len(shape) != 4 else 1
    x = torch.randn(shape, generator=draw).cuda()
    if last and x.dim() > 3:
        x = x.movedim(-3, -1).contiguous().movedim(-1, -3)
    noise = torch.rand(*shape[:lead], x.shape[lead:].numel(), generator=draw).cuda()
    found = []
    for function in (dropped.dropped, dropped.written):
        leaf = x.clone().requires_grad_()
        out = function(leaf, noise, 0.25)
        (grad,) = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
        (again,) = torch.autograd.grad(out.square().sum(), leaf)
        found.append((out, grad, again))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def _back(rows: float8.Rows) -> torch.Tensor:
    return (rows.values.float() * rows.scale).cpu()


def test_eight_bit_kernels_round_as_torch_does() -> None:
    """One in a thousand numbers may lie so near the middle that the GPU rounds it to the other side."""
    draw = torch.Generator().manual_seed(0)
    z, branch, grad = (torch.randn(70, 48, generator=draw).bfloat16() for _ in range(3))
    weight, bias = torch.rand(48, generator=draw) + 0.5, torch.randn(48, generator=draw)
    parts = [torch.randn(5, 3, 7, 16, generator=draw).bfloat16().transpose(1, 2).contiguous() for _ in range(3)]
    parts = [part.transpose(1, 2) for part in parts]  # [5, 3, 7, 16], heads inside tokens as attention returns them

    wide = torch.randn(9, 80, generator=draw).bfloat16()  # not three pieces of a power of two, as 48 is
    usual = torch.randn(9, 3072, generator=draw).bfloat16()

    def made(device: str) -> list[torch.Tensor]:
        a, b, g, w, c = (part.to(device) for part in (z, branch, grad, weight, bias))
        total, plain = float8.added_and_normed(a, b, w, c, 1e-6)
        return [
            _back(float8.rows(a)),
            _back(float8.normed(a, w, c, 1e-6)),
            total.float().cpu(),
            _back(plain),
            _back(float8.gelu(a)),
            _back(float8.gelu_backward(g, a)),
            _back(float8.joined(*(part.to(device) for part in parts))),
            float8.norm_backward(g, b, a, w, 1e-6)[0].float().cpu(),
            _back(float8.norm_backward(g, b, a, w, 1e-6)[1]),
            _back(float8.gelu(wide.to(device))),
            _back(float8.gelu(usual.to(device))),
        ]

    for got, want in zip(made("cuda"), made("cpu"), strict=True):
        near = torch.isclose(got, want, rtol=1e-2, atol=1e-5)
        assert near.float().mean() > 0.995
        torch.testing.assert_close(got, want, rtol=0.13, atol=1e-2)  # one step of e4m3 at most


HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


@pytest.mark.skipif(not HOPPER, reason="these kernels fit a Hopper's chip")
@pytest.mark.parametrize(("tokens", "heads"), [(207, 12), (197, 3), (256, 2), (129, 1), (61, 4), (1, 1)])
def test_attention_by_our_kernels_is_torchs(tokens: int, heads: int) -> None:
    from promptfed.backbones import attention_kernels as own

    draw = torch.Generator("cuda").manual_seed(tokens)
    qkv, grad = (torch.randn(5 * tokens, n * heads * 64, generator=draw, device="cuda").bfloat16() for n in (3, 1))
    assert own.fit(qkv, heads, tokens)
    assert not own.fit(qkv, 2 * heads, tokens)  # heads of 32 numbers
    leaf = (4 * qkv).double().requires_grad_()  # so that a token looks at few others
    query, key, value = leaf.view(5, tokens, 3, heads, 64).permute(2, 0, 3, 1, 4).unbind(0)
    want = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(grad.shape)
    (to_want,) = torch.autograd.grad(want, leaf, grad.double())
    found, norms = own.attend(4 * qkv, heads, tokens)
    to_found = own.attend_backward(4 * qkv, grad, norms, heads, tokens)
    assert (found.float() == want.to(found.dtype).float()).float().mean() > 0.95  # the others lie near the middle
    assert (found.float() - want).norm() / want.norm() < 0.03
    assert (to_found - to_want).norm() / to_want.norm() < 0.01
    assert to_found.equal(own.attend_backward(4 * qkv, grad, norms, heads, tokens))


@pytest.mark.skipif(not HOPPER, reason="these kernels fit a Hopper's chip")
@pytest.mark.parametrize("wanted", [slice(None), slice(1, 4)])
def test_both_ways_through_attention_give_the_same_rows(wanted: slice, monkeypatch: pytest.MonkeyPatch) -> None:
    from promptfed.backbones import attention_kernels

    draw = torch.Generator("cuda").manual_seed(0)
    qkv, grad = (torch.randn(3 * 50, n * 128, generator=draw, device="cuda").bfloat16() for n in (3, 1))
    found = []
    for ours in (True, False):
        monkeypatch.setattr(attention_kernels, "fit", lambda *_, ours=ours: ours)
        mixed, way = float8.attended(qkv, 2, 50)
        found.append((_back(mixed), _back(way.backward(grad, wanted))))
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() / other.norm() < 0.03


def test_the_class_token_gathers_alone_what_it_gathers_beside_others() -> None:
    net = ViT.random((3, 32, 32), 4, width=128, depth=1, heads=2, patch=8, precision="bf16").to(torch.device("cuda"))
    own, draw = transformer._own(net.frozen, 0), torch.Generator("cuda").manual_seed(0)
    z, grad = (torch.randn(2, 5, n, 128, generator=draw, device="cuda").bfloat16() for n in (17, 1))
    found = []
    for kind, lean in ((torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)):
        leaf, weights = z.to(kind).requires_grad_(), {name: value.to(kind) for name, value in own.items()}
        out = transformer._block(net.form, weights, leaf, alone=True, flash=kind == torch.bfloat16, lean=lean)
        found.append((out.detach().float(), torch.autograd.grad(out, leaf, grad.to(kind))[0].float()))
    for exact, usual, lean_one in zip(*found, strict=True):
        assert (lean_one - exact).norm() < 1.5 * (usual - exact).norm()


@pytest.mark.parametrize(("side", "channels"), [(40, 3), (28, 1)])
def test_bytes_become_normalised_images_as_in_torch(side: int, channels: int) -> None:
    from promptfed.core.kernels import image_kernels

    images = torch.randint(0, 256, (9, side, side, channels), dtype=torch.uint8).cuda()
    scale, shift = torch.rand(channels).cuda() / 50, -torch.rand(channels).cuda()
    index = torch.tensor([8, 0, 3, 3]).cuda()
    found = image_kernels.normalised(images, index, scale, shift)
    torch.testing.assert_close(found, torch.addcmul(shift, images[index].float(), scale), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("patch", [4, 7, 14])
@pytest.mark.parametrize("own", [False, True])
def test_the_sequence_by_our_kernels_is_torchs(patch: int, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net = ViT.random((3, 28, 28), 4, width=48, depth=1, heads=2, patch=patch, precision="bf16").to(torch.device("cuda"))
    x, draw = torch.randn(2, 3, 28, 28, 3).cuda().movedim(-1, -3), torch.Generator("cuda")
    found = []
    for _ in range(2):
        shape = (2, 3, 5, 48) if own else (2, 5, 48)
        leaf = torch.randn(shape, generator=draw.manual_seed(0), device="cuda").bfloat16().requires_grad_()
        z = transformer.embed(net.form, net.frozen, x, leaf)
        found.append((z.detach(), torch.autograd.grad(z, leaf, torch.ones_like(z))[0]))
        monkeypatch.setattr(gpus, "has_triton", lambda _: False)
    (ours, to_ours), (theirs, to_theirs) = found
    torch.testing.assert_close(ours, theirs, rtol=0.01, atol=0.01)  # a patch's products add up in another order
    assert to_ours.equal(to_theirs)


def test_the_plain_norm_by_our_kernel_is_torchs() -> None:
    from promptfed.backbones import kernels

    z, weight, bias = (torch.randn(shape).bfloat16().cuda() for shape in ((3, 7, 80), (80,), (80,)))
    for ours, theirs in zip(
        kernels.plain_norm(z + 1, weight, bias, 1e-6),
        torch.native_layer_norm(z + 1, (80,), weight, bias, 1e-6),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_eight_bit_products_add_up_as_torch_does() -> None:
    draw = torch.Generator().manual_seed(1)
    x, matrix, bias = (torch.randn(*shape, generator=draw) for shape in ((33, 64), (48, 64), (48,)))
    want, got = (
        float8.QuantisedLinear.of(matrix.to(device), bias.to(device))(float8.rows(x.to(device))).cpu()
        for device in ("cpu", "cuda")
    )
    torch.testing.assert_close(got.float(), want.float(), rtol=0.02, atol=0.1)


@pytest.mark.parametrize("heads", [1, 2])
def test_features_in_eight_bits_are_near_float32_on_the_gpu(heads: int) -> None:
    draw = torch.Generator().manual_seed(0)
    x, prompt = torch.randn(2, 5, 3, 32, 32, generator=draw).cuda(), torch.randn(2, 4, 64, generator=draw).cuda()
    found = []
    for precision in ("fp32", "fp8"):
        net = ViT.random((3, 32, 32), 4, width=64, depth=4, heads=heads, patch=8, precision=precision)
        net = net.to(torch.device("cuda"))
        leaf = prompt.clone().requires_grad_()
        features = net.features({}, x, tokens=leaf)
        (grad,) = torch.autograd.grad((features * torch.linspace(-1, 1, 64, device="cuda")).sum(), leaf)
        found.append((features.detach(), grad))
    for exact, near in zip(*found, strict=True):
        assert (exact - near).norm() / exact.norm() < 0.1
