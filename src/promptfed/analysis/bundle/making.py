"""Making a bundle of a finished run, or of a site's model.

A model often holds more than its answers need: momentum, banks of scores, the last round's weights, a context whose
text features are already computed. A name gets into the bundle only if the answers depend on it, which is tried on
images of noise: the name is left out if `predict` gives the same bits both without it and with NaN in its place.
Without it shows whether `predict` can do without; NaN shows whether it is read where it is there. The facts in a batch
are treated alike. The answers of every client are then compared, to the last bit, with those of its whole model.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptfed.analysis.bundle.contents import (
    ABOUT,
    CLIENTS,
    SHARED,
    Bundle,
    BundledClient,
    raw,
    row_sum,
    write_about,
    write_tensors,
)
from promptfed.analysis.predict import Model, client_model, find_folder, frozen_fingerprint, open_classifier, site_model
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.extensions import HasConstants
from promptfed.core.method import Method, Task
from promptfed.core.progress import bar
from promptfed.core.protocols import Batch
from promptfed.core.tree import Tree
from promptfed.core.version import __version__
from promptfed.results.folder import names
from promptfed.results.folder.parts import read_json, read_summary
from promptfed.results.metrics import METRICS
from promptfed.runs import config
from promptfed.runs.config import Recipe
from promptfed.runs.planning import make_task
from promptfed.runs.site_model import read_model

IMAGES = 2  # of noise, on which is tried what the answers depend on


@dataclass(frozen=True)
class _Source:
    """The models to bundle, each made when it is its turn."""

    recipe: Recipe
    models: Sequence[Callable[[], Model]]
    accuracy: Sequence[float | None]
    names: Sequence[str | None]
    metrics: Sequence[Mapping[str, float | None]]


def make_bundle(source: Path, out: Path, device: str = "auto", only: int | None = None) -> Bundle:
    """Write the bundle of the run or the site's model at `source` to the new folder `out`, whole or not at all.

    With `only`, that client's model alone is in it.
    """
    if out.exists():
        raise PromptFedError(f"{out} exists already; give another --out, or delete it.")
    found = _find(source, device, only)
    if isinstance(method := config.build_method(found.recipe), HasConstants):
        raise PromptFedError(
            f"{method.name} computes constants of every image before it answers, which no bundle can; use "
            "`promptfed predict` with the run's own folder."
        )
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        bundle = _write(part, found)
        part.rename(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return bundle


def _find(source: Path, device: str, only: int | None) -> _Source:
    """Open the run or the site's model at `source`; of a run all clients, or `only` one."""
    folder = find_folder(source, device)
    if (folder / ABOUT).is_file():
        raise PromptFedError(f"{folder} is a bundle already; give the folder of a finished run.")
    if not (folder / names.RECIPE).is_file():
        if only is not None:
            raise PromptFedError(f"{folder} has the model of one site; leave out --client.")
        report = read_json(folder / "report.json") or {}
        alone = site_model(folder, device)
        return _Source(read_model(folder).recipe, [lambda: alone], [report.get("accuracy")], [report.get("site")], [{}])
    run = open_classifier(folder, device)
    if only is not None:
        run.check_client(only)
    summary = read_summary(folder)
    each = summary["accuracy"].get("per_client") or [None] * len(run)
    beyond = summary.get("metrics")
    metrics = [{name: beyond[name]["per_client"][c] for name in METRICS[1:]} if beyond else {} for c in range(len(run))]

    def make(client: int) -> Callable[[], Model]:
        return lambda: client_model(run, client)

    chosen = range(len(run)) if only is None else [only]
    return _Source(
        run.recipe,
        [make(client) for client in chosen],
        [each[client] for client in chosen],
        [None] * len(chosen),
        [metrics[client] for client in chosen],
    )


def _write(folder: Path, source: _Source) -> Bundle:
    """Write all files of the bundle."""
    rows, facts, model = _collect(source.models)
    # with a single client nothing tells what is shared, and its row is all there is
    equal = [name for name in rows[0] if len(rows) > 1 and all(row[name] is rows[0][name] for row in rows)]
    own = [tree.drop(row, equal) for row in rows]
    clients = {
        int(about["client"]): BundledClient(name, accuracy, about, row_sum(row), metrics)
        for about, name, accuracy, metrics, row in zip(
            facts, source.names, source.accuracy, source.metrics, own, strict=True
        )
    }
    recipe = source.recipe
    cpu = make_task(recipe, model.shape, model.task.classes, torch.device("cpu"))
    bundle = Bundle(
        promptfed=__version__,
        method=recipe.method,
        prompt=recipe.prompt,
        backbone=recipe.backbone,
        fingerprint=frozen_fingerprint(cpu.backbone),
        classes=model.task.classes,
        shape=model.shape,
        mean=model.mean,
        std=model.std,
        seed=model.seed,
        round=model.round,
        trained=model.task.num_clients,
        order=tuple(rows[0]),
        clients=clients,
        shared=write_tensors(folder / SHARED, tree.pick(rows[0], equal)),
        rows=write_tensors(folder / CLIENTS, tree.stack(own)),
    )
    write_about(folder, bundle)
    return bundle


def _collect(models: Iterable[Callable[[], Model]]) -> tuple[list[Tree], list[dict[str, Any]], Model]:
    """Return every client's tensors and facts, and one of the models; equal tensors are one object."""
    rows: list[Tree] = []
    facts: list[dict[str, Any]] = []
    needs: _Needs | None = None
    makers = list(models)
    with bar("bundling clients", len(makers)) as advance:
        for make in makers:
            model = make()
            probe = _Probe.of(model)
            needs = needs or probe.needs()
            if not probe.unchanged(needs):
                raise PromptFedError(f"Client {int(model.facts['client'])} needs more of its model than other clients.")
            row = {name: probe.params[name].detach().cpu() for name in needs.params}
            first = rows[0] if rows else row
            rows.append({name: first[name] if _same(first[name], value) else value for name, value in row.items()})
            facts.append({name: model.facts[name].tolist() for name in needs.facts})
            advance(1)
    return rows, facts, model


# -- what answers depend on -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Needs:
    """The names that answers depend on."""

    params: tuple[str, ...]
    facts: tuple[str, ...]


@dataclass(frozen=True)
class _Probe:
    """A prepared model, a batch of noise, and its answers."""

    method: Method
    task: Task
    params: Tree
    batch: Batch
    learned: tuple[str, ...]  # names that `prepare` was given; the others it computed
    facts: tuple[str, ...]
    answers: Tensor

    @classmethod
    def of(cls, model: Model) -> "_Probe":
        noise = np.random.default_rng(0).integers(0, 256, (IMAGES, *model.shape, 3), np.uint8)
        with torch.no_grad():
            task, batch = model.batch(noise)
            params = model.prepared(task)
            answers = model.method.predict(task, params, batch)
        return cls(model.method, task, params, batch, tuple(model.params), tuple(model.facts), answers)

    def needs(self) -> _Needs:
        """Return the names that answers depend on; what is computed is kept rather than what it is computed from."""
        params, batch = dict(self.params), dict(self.batch)
        computed = [name for name in params if name not in self.learned]
        for name in [*(name for name in self.learned if name in params), *computed]:
            if self._ignores(params, name, lambda changed: (changed, batch)):
                del params[name]
        for name in self.facts:
            if name != "client" and self._ignores(batch, name, lambda changed: (params, changed)):
                del batch[name]
        return _Needs(tuple(params), tuple(name for name in self.facts if name in batch))

    def unchanged(self, needs: _Needs) -> bool:
        """Say whether the model answers alike with nothing but what is needed."""
        batch = tree.drop(self.batch, set(self.facts) - set(needs.facts))
        return self._answers(tree.pick(self.params, needs.params), batch)

    def _ignores(self, given: Tree, name: str, put: Callable[[Tree], tuple[Tree, Batch]]) -> bool:
        """Say whether answers are the same without `name`, and with NaN in its place."""
        value = given[name]
        if not self._answers(*put(tree.drop(given, [name]))):
            return False
        poison = torch.full_like(value, float("nan")) if value.is_floating_point() else torch.full_like(value, -1)
        return self._answers(*put(given | {name: poison}))

    def _answers(self, params: Tree, batch: Batch) -> bool:
        """Say whether the answers are those of the whole model, to the last bit."""
        try:
            with torch.no_grad():
                return _same(self.method.predict(self.task, params, batch), self.answers)
        except Exception:  # a method may fail in any way where a name is missing
            return False


def _same(one: Tensor, other: Tensor) -> bool:
    """Say whether two tensors are equal to the last bit."""
    if one is other:
        return True
    alike = one.dtype == other.dtype and one.shape == other.shape
    return alike and raw(one.detach().cpu()) == raw(other.detach().cpu())
