"""The content of figures.json: small ones worked out by hand, and what must hold for all."""

import json
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from promptfed.core import statistics
from promptfed.core.errors import PromptFedError
from promptfed.results import figures

# Clients 0 and 1 hold class 0, clients 2 and 3 class 1; only client 3 is of the second domain.
COUNTS = np.array([[4, 0], [2, 0], [0, 6], [0, 3]])
DOMAINS = np.array([0, 0, 0, 1])
NAMES = ("studio", "street")
# Around the mean (3, 4), which has length 5: two one way, two the other.
PROMPTS = np.array([[[4.0, 4]], [[4, 4]], [[2, 4]], [[2, 4]]])

SHAPES = st.tuples(st.integers(2, 6), st.integers(1, 3), st.integers(1, 4))


@pytest.fixture(autouse=True)
def without_sklearn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that scikit-learn is not installed."""
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)


def test_prompts_are_compared_with_labels_and_domains() -> None:
    made = figures.make({"prompts": PROMPTS}, COUNTS, DOMAINS, NAMES)
    assert made is not None
    like, unlike = 1.0, round(24 / np.sqrt(32 * 20), 4)
    assert unlike == 0.9487
    cosine = [[like, like, unlike, unlike]] * 2 + [[unlike, unlike, like, like]] * 2
    pairs = [[0, 0, 1, 1]] * 2 + [[1, 1, 0, 0]] * 2
    assert made == {
        "clients": 4,
        "domain_names": ["studio", "street"],
        "domains": [0, 0, 0, 1],
        "classes": [0, 0, 1, 1],
        "prompts": {
            "cosine": cosine,
            "centred": [[1 - 2 * apart for apart in row] for row in pairs],
            "spread": 0.2,
            "label_distance": pairs,
            # Of the pairs with like prompts half are of one domain, and so of the others: no correlation.
            "rank_correlation": {"label": -1.0, "domain": 0.0},
        },
    }  # fmt: skip


def test_equal_prompts_have_no_direction_once_centred() -> None:
    made: Any = figures.make({"prompts": np.full((4, 2, 3), 0.1, np.float32)}, COUNTS, DOMAINS, NAMES)
    assert made["prompts"]["cosine"] == [[1.0] * 4] * 4
    assert made["prompts"]["centred"] == [[0.0] * 4] * 4
    assert made["prompts"]["spread"] == 0
    assert made["prompts"]["rank_correlation"] == {"label": None, "domain": None}


def test_few_clients_stand_on_their_principal_components() -> None:
    corners = np.array([[3.0, 1, 0], [3, -1, 0], [-3, 1, 0], [-3, -1, 0]])
    made: Any = figures.make({"descriptors": corners}, COUNTS, DOMAINS, NAMES)
    assert made["descriptors"]["map"] == "principal components"
    assert made["descriptors"]["explained"] == [0.9, 0.1]
    assert np.abs(made["descriptors"]["points"]) == pytest.approx(np.array([[1, 0.3333]] * 4))


@pytest.mark.parametrize(("shape", "explained"), [((4, 1), [1.0, 0.0]), ((2, 3), [1.0, 0.0])])
def test_one_dimension_or_two_clients_lie_on_a_line(shape: tuple[int, int], explained: list[float]) -> None:
    made: Any = figures.make({"descriptors": np.eye(*shape)}, COUNTS[: shape[0]], DOMAINS[: shape[0]], NAMES)
    assert made["descriptors"]["explained"] == explained
    assert {y for _, y in made["descriptors"]["points"]} == {0.0}


def test_equal_descriptors_are_one_point() -> None:
    same = np.ones((8, 3))
    made: Any = figures.make({"descriptors": same}, np.ones((8, 2)), np.zeros(8, int), ())
    assert made["descriptors"] == {
        "map": "principal components", "explained": [0.0, 0.0], "points": [[0.0, 0.0]] * 8,
    }  # fmt: skip


@pytest.mark.parametrize(("clients", "perplexity"), [(5, 4 / 3), (64, 21.0), (100, 21.0)])
def test_tsne_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, clients: int, perplexity: float) -> None:
    asked: list[dict[str, Any]] = []

    class Recorded:
        def __init__(self, dimensions: int, **options: Any) -> None:
            asked.append({"dimensions": dimensions} | options)

        def fit_transform(self, vectors: statistics.Array) -> statistics.Array:
            return vectors[:, :2] * 10

    module = ModuleType("sklearn.manifold")
    module.__dict__["TSNE"] = Recorded
    monkeypatch.setitem(sys.modules, "sklearn", ModuleType("sklearn"))
    monkeypatch.setitem(sys.modules, "sklearn.manifold", module)
    line = np.stack([np.arange(clients), np.zeros(clients), np.zeros(clients)], 1)
    made: Any = figures.make({"descriptors": line}, np.ones((clients, 2)), np.zeros(clients, int), ())
    assert asked == [
        {"dimensions": 2, "perplexity": perplexity, "init": "pca", "learning_rate": "auto", "random_state": 0,
         "method": "exact"}
    ]  # fmt: skip
    assert made["descriptors"]["map"] == "t-SNE"
    assert made["descriptors"]["perplexity"] == round(perplexity, 2)
    assert made["descriptors"]["points"][0] == [-1.0, 0.0]
    assert made["descriptors"]["points"][-1] == [1.0, 0.0]


def test_the_real_tsne_keeps_groups_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    pytest.importorskip("sklearn.manifold")
    rng = np.random.default_rng(0)
    group = np.arange(12) % 2
    vectors = 8 * group[:, None] + rng.normal(size=(12, 16))
    one, again = (figures.make({"descriptors": vectors}, np.ones((12, 2)), group, NAMES) for _ in range(2))
    assert one == again
    found: Any = one
    points = np.array(found["descriptors"]["points"])
    between = np.linalg.norm(points[group == 0].mean(0) - points[group == 1].mean(0))
    within = np.linalg.norm(points[group == 0] - points[group == 0].mean(0), axis=1).max()
    assert found["descriptors"]["map"] == "t-SNE"
    assert between > 2 * within


def test_attention_is_kept_as_it_is() -> None:
    made: Any = figures.make({"attention": np.array([[0.25, 0.75], [1, 0]])}, COUNTS[:2], DOMAINS[:2], NAMES)
    assert made["attention"] == [[0.25, 0.75], [1.0, 0.0]]
    assert "prompts" not in made
    assert "descriptors" not in made


def test_nothing_to_show_is_none() -> None:
    assert figures.make({}, COUNTS, DOMAINS, NAMES) is None
    assert figures.make({"prompts": PROMPTS[:1], "descriptors": np.ones((1, 3))}, COUNTS[:1], DOMAINS[:1], ()) is None


def test_only_the_first_clients_are_shown() -> None:
    exhibits = {"prompts": np.eye(70)[:, None], "descriptors": np.eye(70), "attention": np.full((70, 4), 0.25)}
    made: Any = figures.make(exhibits, np.ones((70, 3)), np.zeros(70, int), ("one",))
    assert made["clients"] == len(made["domains"]) == len(made["classes"]) == len(made["attention"]) == 64
    assert np.array(made["prompts"]["cosine"]).shape == (64, 64)
    assert len(made["descriptors"]["points"]) == 64


@pytest.mark.parametrize(
    ("exhibits", "sentence"),
    [
        ({"prompt": PROMPTS}, 'Unknown exhibit "prompt"; did you mean "prompts"?'),
        ({"prompts": PROMPTS[:3]}, r'"prompts" must be \[N, K, D\] with N=4 clients, not \[3, 1, 2\]'),
        ({"descriptors": np.ones(4)}, r'"descriptors" must be \[N, D\] with N=4 clients, not \[4\]'),
        ({"attention": PROMPTS}, r'"attention" must be \[N, K\] with N=4 clients, not \[4, 1, 2\]'),
        ({"attention": np.ones((4, 0))}, r"not \[4, 0\]"),
        ({"descriptors": np.full((4, 2), np.nan)}, '"descriptors" holds a number that is not finite'),
    ],
)
def test_mistakes_are_sentences(exhibits: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PromptFedError, match=sentence):
        figures.make(exhibits, COUNTS, DOMAINS, NAMES)


@settings(deadline=None, max_examples=50)
@given(arrays(np.float32, SHAPES, elements=st.floats(-9, 9, width=32)), st.randoms(use_true_random=False))
def test_whatever_the_prompts_the_numbers_are_plain_and_in_range(prompts: statistics.Array, random: Any) -> None:
    clients = len(prompts)
    counts = np.array([[random.randint(0, 5) + (c == 0) for c in range(3)] for _ in range(clients)])
    domains = np.array([random.randint(0, 1) for _ in range(clients)])
    exhibits = {"prompts": prompts, "descriptors": prompts.reshape(clients, -1)}
    made: Any = figures.make(exhibits, counts, domains, NAMES)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    for key, low in (("cosine", -1), ("centred", -1), ("label_distance", 0)):
        values = np.array(made["prompts"][key])
        assert (values == values.T).all()
        assert low <= values.min() <= values.max() <= 1
    for value in made["prompts"]["rank_correlation"].values():
        assert value is None or -1 <= value <= 1
    assert np.abs(made["descriptors"]["points"]).max() in (0, 1)
