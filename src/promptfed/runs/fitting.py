"""What a recipe leaves open and its data decide: the partition, and the number of clients."""

from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path

from promptfed.core.errors import PromptFedError, choice
from promptfed.data.datasets import DATASETS, find_dataset
from promptfed.data.domain_partitioners import Domain
from promptfed.data.facts import OWN_KINDS, find_domains, own_photos
from promptfed.data.parquet import HubParquet
from promptfed.data.partition import PARTITIONS
from promptfed.data.partitioners import Dirichlet
from promptfed.data.photos import Photo
from promptfed.runs.filling import fill_named
from promptfed.runs.recipe import Recipe
from promptfed.runs.selecting import own_keys

LISTED = tuple(kind.name for kind in OWN_KINDS)  # a user's own photographs, which are listed before they are read
IMAGES_EACH = 10  # a client should have so many training images, where the number of clients is not given


def fit_to_data(recipe: Recipe, given: Container[str]) -> Recipe:
    """Return the recipe with the partition and the number of clients that suit its data, where they are not `given`."""
    kind, _, path = str(recipe.data.get("name")).partition(":")
    here = kind == HubParquet.name or Path(path).expanduser().exists()
    if "partition" not in given and kind in LISTED and path and here:
        recipe = _divided(recipe, given)
    if "clients" not in given and recipe.partition.get("name") == Domain.name:
        recipe = _one_per_domain(recipe)
    return recipe


def _divided(recipe: Recipe, given: Container[str]) -> Recipe:
    """Return the recipe with one client per site, if its photographs come from several, else with what suits them."""
    options = fill_named(own_keys(recipe.data), "data", DATASETS)
    own = own_photos(find_dataset(str(options.pop("name")), options))
    photos = own.album().photos if own else ()
    sites = len({photo.domain for photo in photos})
    if sites > 1 and ("clients" not in given or recipe.clients == sites):
        return replace(recipe, partition={"name": Domain.name})
    if sites > 1 or recipe.partition != Recipe().partition:
        return recipe
    if len({photo.label for photo in photos if photo.trains}) < int(recipe.partition["classes_per_client"]):
        recipe = replace(recipe, partition={"name": Dirichlet.name})
    return recipe if "clients" in given else replace(recipe, clients=_suitable(photos, recipe.clients))


def _suitable(photos: Sequence[Photo], most: int) -> int:
    """Return how many clients the photographs suffice for, from 1 to `most`."""
    training = sum(photo.trains for photo in photos)
    return max(1, min(most, training // IMAGES_EACH))


def _one_per_domain(recipe: Recipe) -> Recipe:
    """Return the recipe with as many clients as its data set has domains, less the one that is left out."""
    unseen = fill_named(recipe.partition, "partition", PARTITIONS)["unseen"]
    options = fill_named(own_keys(recipe.data), "data", DATASETS)
    name = str(options.pop("name"))
    domains = find_domains(name, **options)
    if unseen and unseen not in domains:
        raise choice("domain", str(unseen), domains, f'data set "{name}"')
    clients = len(domains) - bool(unseen)
    if clients < 2:
        there = ("one domain" if clients else "no domain") + (f' besides "{unseen}"' if unseen else "")
        raise PromptFedError(
            f'Data set "{name}" has {there}, and the domain partition one client per domain; choose another '
            "partition.name, or set clients=1."
        )
    return replace(recipe, clients=clients)
