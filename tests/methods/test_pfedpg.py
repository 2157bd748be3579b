"""pFedPG's clients: a step by hand, exactly the prompt on the way, and what recipes and people see of the method."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from promptfed.backbones import transformer
from promptfed.backbones.cnn import ConvNet
from promptfed.backbones.pretrained import ViT
from promptfed.backbones.transformer import Arch
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.options import defaults, make
from promptfed.core.protocols import Rng
from promptfed.core.tree import Tree
from promptfed.methods.fedrep import FedRep
from promptfed.methods.pfedpg import PFedPG
from promptfed.runs import config, nested
from promptfed.runs.checks import toy_loop
from support.small_generators import BOTH, GENERATORS, TASK, Tokens8, attending, single
from support.toys import BLACK, FrozenTokens, dataset, numbered, rng, shards, task


@dataclass(frozen=True)
class Base(FrozenTokens):
    """The shapes of a ViT-B/16 without its numbers."""

    token_width: ClassVar[int] = 768

    def init(self, rng: Rng) -> Tree:
        arch = Arch(width=768, depth=12, heads=12, patch=16, mlp=3072, grid=(14, 14))
        shapes = transformer.shapes(arch) | {"head.weight": (10, 768), "head.bias": (10,)}
        return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


# -- the client ---------------------------------------------------------------------------------------------------


def prompt(value: float, count: int = 1) -> Tree:
    return {"prompt": torch.full((count, 3), value)}


def head(bias: float = 0.0) -> Tree:
    return {"head.weight": torch.tensor([[1.0] * 3, [0.0] * 3]), "head.bias": torch.tensor([bias, -bias])}


def test_one_local_step_by_hand() -> None:
    method = PFedPG(tokens=1, lr=1.0, epochs=1, batch=4, weight_decay=0.0)
    own = shards(dataset([BLACK] * 4, [0, 1, 1, 1]), [1, 3])
    up, personal = method.fit(
        TASK, tree.repeat(prompt(0.0), 2), tree.repeat(head(), 2), own.data([0, 1], 0, stacked=True)
    )
    # the class token is P / 5 = 0, so p = 1/2; ∂/∂logits = ∓1/2, ∂/∂P a fifth of that
    assert set(up) == {"delta"}
    torch.testing.assert_close(up["delta"], torch.stack([torch.full((1, 3), 0.1), torch.full((1, 3), -0.1)]))
    torch.testing.assert_close(tree.row(personal, 0), head(0.5))
    torch.testing.assert_close(tree.row(personal, 1), head(-0.5))


def test_the_defaults_are_the_papers() -> None:
    method = PFedPG()
    assert (method.tokens, method.lr, method.weight_decay, method.batch, method.epochs) == (10, 0.25, 1e-3, 64, 5)
    assert (method.optimiser, method.server_lr) == ("sgd", 1e-3)


def test_the_trained_model_is_what_was_received_and_how_far_it_moved() -> None:
    up = {"delta": torch.full((1, 3), 0.25)}
    found = PFedPG(tokens=1).trained(TASK, prompt(1.0), head(0.5), up)
    torch.testing.assert_close(found, prompt(1.25) | head(0.5), rtol=0, atol=0)


def test_a_client_deploys_its_prompt_tuned_once_more() -> None:
    method, data = PFedPG(tokens=1, epochs=2, batch=2), numbered([5]).data([0], 3, stacked=False)
    up, personal = method.fit(TASK, prompt(0.5), head(), data)
    found = method.adapt(TASK, prompt(0.5), head(), data)
    torch.testing.assert_close(found, method.trained(TASK, prompt(0.5), personal, up), rtol=0, atol=0)
    assert not torch.allclose(found["prompt"], torch.full((1, 3), 0.5))
    assert method.deploy(TASK, attending()) == {}


def test_predictions_are_those_of_prompted_images() -> None:
    x = torch.rand(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    found = PFedPG().predict(TASK, prompt(5.0) | head(), {"x": x})
    torch.testing.assert_close(found[:, 0], (5.0 * 3 + x.sum((1, 2, 3))) / 5)
    assert found.argmax(-1).tolist() == [0, 0, 0, 0]  # the largest logit is the answer


def test_heads_start_alike() -> None:
    where, data = task(FrozenTokens(spread=1.0)), numbered([2]).data([0], 0, stacked=False)
    first, second = (PFedPG().init_client(where, data, rng(client)) for client in (0, 1))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


# -- sizes and traffic --------------------------------------------------------------------------------------------


def test_the_servers_numbers_are_counted_as_in_the_paper() -> None:
    # K·l + N·l + 2·l·l_k + 2·l·l_v with N = 4, K = 10 and l = l_k = l_v = 768
    server = PFedPG().init_server(task(Base(), 4), rng())
    assert tree.floats(server) == 10 * 768 + 4 * 768 + 4 * 768**2 == 2_370_048


@pytest.mark.parametrize(("tokens", "numbers"), [(10, 7_680), (3, 2_304)])
@pytest.mark.parametrize("kind", ["cross-attention", "mlp", "adain", "none"])
def test_exactly_the_prompt_travels(tokens: int, numbers: int, kind: str) -> None:
    backbone = ViT.random((3, 2, 2), 2, width=768, depth=1, heads=1, patch=2, mlp_ratio=1)
    where, own = task(backbone, 2), numbered([3, 2])
    method = PFedPG(tokens=tokens, epochs=1, batch=2, **GENERATORS[kind])
    down = method.download(where, method.init_server(where, rng()), BOTH)
    start = method.init_client(where, own.data([0], 0, stacked=False), rng(0))
    up, personal = method.fit(where, down, tree.repeat(start, 2), own.data([0, 1], 0, stacked=True))
    assert {name: tuple(x.shape) for name, x in down.items()} == {"prompt": (2, tokens, 768)}
    assert {name: tuple(x.shape) for name, x in up.items()} == {"delta": (2, tokens, 768)}
    assert tree.floats(down) // 2 == tree.floats(up) // 2 == numbers
    assert set(personal) == {"head.weight", "head.bias"}


@pytest.mark.parametrize("kind", GENERATORS)
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_the_record_counts_the_prompt_alone(kind: str, optimiser: str, tmp_path: Path) -> None:
    method = PFedPG(tokens=3, epochs=1, batch=8, optimiser=optimiser, **GENERATORS[kind])  # type: ignore[arg-type]
    _, line = toy_loop(method, tmp_path / "run").round(0)
    assert line["traffic"] == {"down_floats": 48, "up_floats": 48, "down_bytes": 384, "up_bytes": 384}  # two clients


def test_a_whole_model_costs_eleven_thousand_times_as_much() -> None:
    where = task(Base())
    down = FedRep().download(where, FedRep().init_server(where, rng()), BOTH)
    assert tree.floats(down) // 2 == 85_798_656
    assert 85_798_656 // 7_680 == 11_171


@pytest.mark.parametrize("tokens", [1, 2, 5, 10, 50, 100, 200])
@pytest.mark.parametrize("kind", ["cross-attention", "mlp", "adain", "none"])
def test_any_number_of_tokens(tokens: int, kind: str) -> None:
    method, own = PFedPG(tokens=tokens, epochs=1, batch=2, **GENERATORS[kind]), numbered([3, 2])
    server = method.init_server(TASK, rng())
    down = method.download(TASK, server, BOTH)
    up, _ = method.fit(TASK, down, tree.repeat(head(), 2), own.data([0, 1], 0, stacked=True))
    after = method.aggregate(TASK, server, BOTH, up, torch.ones(2))
    assert up["delta"].shape == (2, tokens, 3)
    assert all(x.isfinite().all() for x in after.values())
    assert any(not after[name].equal(server[name]) for name in server)


# -- Table 4's row P_base -----------------------------------------------------------------------------------------


def test_clients_are_tested_with_the_basis_and_trained_as_ever() -> None:
    own, base = PFedPG(tokens=1), PFedPG(tokens=1, test_prompt="basis")
    down = base.download(TASK, single(), BOTH)
    assert down["basis"].tolist() == [[[2.0]], [[2.0]]]
    torch.testing.assert_close({"prompt": down["prompt"]}, own.download(TASK, single(), BOTH))
    data = numbered([2]).data([0], 0, stacked=False)
    alone = prompt(0.5) | {"basis": prompt(-1.0)["prompt"]}
    for one, other in zip(base.fit(TASK, alone, head(), data), own.fit(TASK, prompt(0.5), head(), data), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    tested = base.adapt(TASK, alone, head(), data)
    torch.testing.assert_close(tested, head() | {"prompt": alone["basis"]}, rtol=0, atol=0)


def test_without_a_basis_a_client_is_tested_with_its_own_prompt() -> None:
    method = PFedPG(tokens=1, generator="mlp", test_prompt="basis")
    server = method.init_server(task(Tokens8(), 2), rng())
    assert list(method.download(TASK, server, BOTH)) == ["prompt"]


def test_the_row_of_table_4_trains_nothing_of_its_own() -> None:
    rows = {row: config.load(f"pfedpg/t4-generator/office/{row}")[0] for row in ("pfedpg", "p-base")}
    assert rows["pfedpg"].hash != rows["p-base"].hash
    assert config.training(rows["pfedpg"]).hash == config.training(rows["p-base"]).hash


# -- what a person sees -------------------------------------------------------------------------------------------


def test_exhibits_by_hand() -> None:
    shown = PFedPG(tokens=2).exhibits(TASK, attending(), BOTH, {})
    assert list(shown) == ["prompts", "descriptors", "attention"]
    torch.testing.assert_close(shown["attention"], torch.tensor([[0.75, 0.25], [0.5, 0.5]]))
    assert shown["prompts"].equal(PFedPG(tokens=2).generate(attending(), BOTH))
    assert shown["descriptors"].equal(attending()["descriptor"])


@pytest.mark.parametrize(("kind", "parts"), [("adain", 2), ("mlp", 2), ("none", 1)])
def test_only_cross_attention_shows_attention(kind: str, parts: int) -> None:
    method = PFedPG(tokens=2, **GENERATORS[kind])
    shown = method.exhibits(TASK, method.init_server(TASK, rng()), BOTH, {})
    assert list(shown) == ["prompts", "descriptors"][:parts]


# -- the recipe ---------------------------------------------------------------------------------------------------


def test_presets() -> None:
    def made(*words: str) -> object:
        (recipe,) = config.load("pfedpg", words)
        return config.build_method(recipe)

    assert made("method.preset=paper") == made() == PFedPG()
    assert made("method.preset=tuned") == PFedPG(optimiser="adam")
    assert made("method.preset=tuned", "method.server_lr=0.01") == PFedPG(optimiser="adam", server_lr=0.01)


def test_the_page_has_the_values_of_the_code() -> None:
    def written(value: object) -> str:
        return value if isinstance(value, str) else nested.literal(value)

    page = Path(__file__).parents[2] / "docs" / "methods" / "pfedpg.md"
    rows = [row for row in page.read_text(encoding="utf-8").splitlines() if row.startswith("| `method.")]
    cells = [[cell.strip(" `") for cell in row.split("|")[1:5]] for row in rows]
    cells = [row for row in cells if row[0] != "method.generator" or row[1] == "cross-attention"]
    made, presets = defaults(PFedPG), PFedPG.presets
    assert [row[0] for row in cells] == [f"method.{key}" for key in made]
    for name, default, paper, tuned in cells:
        key = name.removeprefix("method.")
        assert default == written(made[key])
        assert [paper, tuned] == [written(presets[one].get(key, "")) for one in ("paper", "tuned")]


def test_it_runs_on_a_frozen_transformer_unless_told_otherwise() -> None:
    (recipe,) = config.load("pfedpg")
    assert recipe.backbone["name"] == "vit"
    with pytest.raises(PromptFedError, match="Prompt tokens need a transformer"):
        PFedPG().init_server(task(ConvNet((3, 32, 32), 2)), rng())


@pytest.mark.parametrize("key", ["tokens", "batch", "join_steps", "epochs", "width"])
def test_sizes_that_make_no_sense_are_refused(key: str) -> None:
    least = 0 if key in ("epochs", "width") else 1
    with pytest.raises(PromptFedError, match=f"method.{key} must be at least {least}"):
        make(PFedPG, {key: least - 1}, "method")


@pytest.mark.parametrize("key", ["lr", "server_lr", "join_lr"])
def test_rates_of_zero_are_refused(key: str) -> None:
    with pytest.raises(PromptFedError, match=f"method.{key} must be above 0"):
        make(PFedPG, {key: 0.0}, "method")


@pytest.mark.parametrize(("key", "value"), [("generator", "crossattention"), ("sign", "paper"), ("optimiser", "adamw")])
def test_unknown_choices_are_refused(key: str, value: str) -> None:
    with pytest.raises(PromptFedError, match=f'Unknown method.{key} "{value}"'):
        make(PFedPG, {key: value}, "method")


def test_without_epochs_nothing_moves() -> None:
    data = numbered([2]).data([0], 0, stacked=False)
    up, personal = PFedPG(tokens=1, epochs=0).fit(TASK, prompt(0.5), head(), data)
    assert not up["delta"].any()
    torch.testing.assert_close(personal, head(), rtol=0, atol=0)
