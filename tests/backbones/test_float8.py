import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from promptfed.backbones import float8, transformer
from promptfed.backbones.pretrained import LoadedViT, Precision, ViT
from promptfed.core import ops
from promptfed.core.errors import PromptFedError

CLOSE = 2.0**-4  # e4m3 has three bits after the point: half a step is a sixteenth


def back(rows: float8.Rows) -> torch.Tensor:
    return rows.values.float() * rows.scale


def network(precision: Precision, layer_scale: bool = False) -> LoadedViT:
    return ViT.random(
        (3, 16, 16), 4, width=32, depth=3, heads=2, patch=4, layer_scale=layer_scale, precision=precision, seed=3
    )


def test_a_row_is_scaled_to_the_largest_number_there_is() -> None:
    made = float8.rows(torch.tensor([[448.0, -224.0, 1.0], [0.0, 0.0, 0.0], [2.1, -4.48, 0.01]]))
    assert made.scale.flatten().tolist() == pytest.approx([1.0, 1e-12 / 448, 0.01])
    assert made.values.float()[0].tolist() == [448.0, -224.0, 1.0]
    assert made.values.float()[1].tolist() == [0.0, 0.0, 0.0]
    assert made.values.float()[2].tolist() == [208.0, -448.0, 1.0]  # 210 lies nearest to 208


def test_a_product_of_numbers_that_e4m3_has_is_exact() -> None:
    one = float8.rows(torch.tensor([[448.0, 2.0], [0.0, -448.0]]))
    two = float8.rows(torch.tensor([[1.0, 448.0], [448.0, 0.0], [448.0, 448.0]]))
    bias = torch.tensor([0.0, 0.0, 64.0]).bfloat16()
    # row 1: 448 + 2·448, 448², 448² + 2·448 + 64; row 2: −448², 0, −448² + 64; then rounded to bf16
    wanted = torch.tensor([[1344.0, 200704.0, 201664.0], [-200704.0, 0.0, -200640.0]]).bfloat16()
    assert one.product(two, bias).equal(wanted)


def test_the_gradient_through_a_norm_is_autograds() -> None:
    z, inner, passed = (torch.randn(5, 32, generator=torch.Generator().manual_seed(n)) for n in range(3))
    weight = torch.linspace(0.5, 2, 32)
    leaf = z.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(F.layer_norm(leaf, (32,), weight, None, 1e-6), leaf, inner)
    found, low = float8.norm_backward(passed, inner, z, weight, 1e-6)
    torch.testing.assert_close(found, passed + wanted)
    assert back(low).equal(back(float8.rows(found)))


def test_the_gradient_of_gelu_is_autograds_but_for_rounding() -> None:
    hidden, grad = (torch.randn(4, 16, generator=torch.Generator().manual_seed(n)) for n in range(2))
    leaf = hidden.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(F.gelu(leaf, approximate="tanh"), leaf, grad)
    assert ((back(float8.gelu_backward(grad, hidden)) - wanted).abs() <= CLOSE * wanted.abs() + 1e-4).all()
    assert ((back(float8.gelu(hidden)) - F.gelu(hidden)).abs() <= CLOSE * F.gelu(hidden).abs() + 1e-3).all()


def test_the_three_parts_of_attention_stand_side_by_side() -> None:
    query, key, value = (torch.randn(2, 2, 3, 8, generator=torch.Generator().manual_seed(n)) for n in range(3))
    made = back(float8.joined(query, key, value)).view(2, 3, 3, 2, 8)
    for number, part in enumerate((query, key, value)):
        assert ((made[:, :, number].transpose(1, 2) - part).abs() <= CLOSE * part.abs() + 0.01).all()


def test_no_value_is_beyond_what_e4m3_has_and_little_below() -> None:
    own = transformer._own(network("fp32").frozen, 0)
    own = own | {"norm1.bias": torch.linspace(-1, 1, 32), "qkv.bias": torch.linspace(-2, 2, 96)}
    made = float8.block(2, 1e-6, own)
    towards = own["qkv.weight"][64] * own["norm1.weight"]  # the token that the first value is largest for
    for z in (towards.unsqueeze(0), -towards.unsqueeze(0), torch.randn(50, 32)):
        values = made.qkv(float8.normed(z.float(), *made.norm1, 1e-6))[:, 64:]
        assert values.abs().max() <= 448
    assert values.abs().median() > 16


@pytest.mark.parametrize("layer_scale", [False, True])
def test_features_and_prompts_gradients_are_near_those_of_float32(layer_scale: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, prompt = torch.randn(2, 5, 3, 16, 16, generator=generator), torch.randn(2, 4, 32, generator=generator)
    made = {}
    for precision in ("fp32", "fp8"):
        net = network(precision, layer_scale)
        assert len(net.low) == (2 if precision == "fp8" else 0)
        leaf = prompt.clone().requires_grad_()
        features = net.features({}, x, tokens=leaf)
        (grad,) = torch.autograd.grad((features * torch.linspace(-1, 1, 32)).sum(), leaf)
        made[precision] = features.detach(), grad
    for exact, near in zip(made["fp32"], made["fp8"], strict=True):
        assert F.cosine_similarity(exact.flatten(), near.flatten(), dim=0) > 0.99
        assert (exact - near).norm() / exact.norm() < 0.1


def test_a_gradient_for_prompts_alone_is_the_same_for_them() -> None:
    net, generator = network("fp8"), torch.Generator().manual_seed(5)
    x, prompt = torch.randn(2, 5, 3, 16, 16, generator=generator), torch.randn(2, 4, 32, generator=generator)
    grads: list[torch.Tensor] = []
    for pixels in (x, x.clone().requires_grad_()):  # images that are learned need the gradient of all tokens
        leaf = prompt.clone().requires_grad_()
        grads += torch.autograd.grad(net.features({}, pixels, tokens=leaf).square().sum(), leaf)
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-5, atol=1e-6)


def test_deep_prompts_pass_the_blocks() -> None:
    generator = torch.Generator().manual_seed(1)
    x, layers = torch.randn(5, 3, 16, 16, generator=generator), torch.randn(3, 4, 32, generator=generator)
    exact, near = (network(p).features({}, x, tokens=list(layers)) for p in ("fp32", "fp8"))
    assert (exact - near).norm() / exact.norm() < 0.1


def test_training_a_prompt_follows_float32s_curve() -> None:
    generator = torch.Generator().manual_seed(2)
    colours = torch.randn(4, 1, 3, 1, 1, generator=generator)
    x = (colours + 0.5 * torch.randn(4, 6, 3, 16, 16, generator=generator)).flatten(0, 1)
    y = torch.arange(24) // 6
    curves = []
    for precision in ("fp32", "fp8"):
        net = network(precision)
        prompt = torch.randn(4, 32, generator=torch.Generator().manual_seed(4)).requires_grad_()
        head = torch.zeros(4, 32, requires_grad=True)
        curve = []
        for _ in range(30):
            logits = ops.linear(net.features({}, x, tokens=prompt), head, torch.zeros(4))
            loss = F.cross_entropy(logits, y)
            to_prompt, to_head = torch.autograd.grad(loss, [prompt, head])
            with torch.no_grad():
                prompt -= 0.1 * to_prompt
                head -= 0.1 * to_head
            curve.append(float(loss.detach()))
        curves.append(torch.tensor(curve))
    assert curves[0][-1] < 0.2 * curves[0][0]
    assert (curves[0] - curves[1]).abs().max() < 0.02


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(PromptFedError, match="multiples of 16"):
        ViT.random((3, 8, 8), 2, width=24, depth=2, heads=2, patch=4, precision="fp8")
    with pytest.raises(PromptFedError, match="gated MLP"):
        ViT.random((3, 8, 8), 2, width=32, depth=2, heads=2, patch=4, swiglu=True, precision="fp8")
    net = network("fp8")
    with pytest.raises(PromptFedError, match="frozen"):
        net.features({"block0.out.bias": torch.zeros(32)}, torch.zeros(1, 3, 16, 16))


def test_its_cached_features_are_not_taken_for_another_precisions() -> None:
    assert len({network(p).fingerprint for p in ("fp32", "bf16", "fp8")}) == 3


def test_the_last_block_is_left_to_the_class_token() -> None:
    net = network("fp8")
    assert len(transformer.quantised(net.form, net.pretrained)) == net.form.depth - 1
