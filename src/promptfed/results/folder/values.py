"""What the files of a run folder say, as frozen values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

from promptfed.results.folder.each import Each, Numbers

ClientMatrix = tuple[tuple[float, ...], ...]  # a row per client


@dataclass(frozen=True)
class Scores:
    """Accuracy over the clients, as fractions; a client without test images has None."""

    mean: float
    weighted: float
    worst: float
    p10: float
    per_client: Sequence[float | None]

    @property
    def best(self) -> float:
        """The accuracy of the best client."""
        if isinstance(self.per_client, Each):
            return float(self.per_client.known.max(initial=self.worst))
        return max((value for value in self.per_client if value is not None), default=self.mean)


@dataclass(frozen=True)
class Traffic:
    """What is sent: floats per client and round, and bytes over all clients of a round or of a run."""

    down_floats: int
    up_floats: int
    down_bytes: int
    up_bytes: int


@dataclass(frozen=True)
class Round:
    """One finished round."""

    number: int
    clients: Sequence[int]
    loss: float | None
    received: Scores | None
    trained: Scores | None
    deployed: Mapping[str, float] | None
    measures: Mapping[str, float]
    traffic: Traffic
    seconds: float
    beyond: Mapping[str, float] = field(default_factory=dict)  # means on other images: SET, and hm and cm
    clock: float | None = None  # seconds of the simulated clock since the run began, if it has one


@dataclass(frozen=True)
class Client:
    """How many images one client holds: training images per class and per domain, and test images."""

    counts: tuple[int, ...]
    domains: tuple[int, ...]
    test: int


@dataclass(frozen=True)
class Holdings:
    """How many images of each class and domain every client holds."""

    hash: str
    classes: tuple[str, ...]
    domain_names: tuple[str, ...]
    clients: Sequence[Client]


class ClientColumns(Sequence[Client]):
    """Clients by columns, for there may be very many; each is made when it is asked for."""

    def __init__(self, counts: Numbers, domains: Numbers, tests: Numbers) -> None:
        self.counts, self.domains, self.tests = counts, domains, tests  # [C, classes], [C, domains], [C]

    def __len__(self) -> int:
        return len(self.tests)

    @overload
    def __getitem__(self, index: int) -> Client: ...
    @overload
    def __getitem__(self, index: slice) -> "ClientColumns": ...
    def __getitem__(self, index: int | slice) -> "Client | ClientColumns":
        if isinstance(index, slice):
            return ClientColumns(self.counts[index], self.domains[index], self.tests[index])
        counts, domains = (tuple(part[index].tolist()) for part in (self.counts, self.domains))
        return Client(counts, domains, int(self.tests[index]))


@dataclass(frozen=True)
class Picture:
    """The PNG of one client's learned prompt."""

    name: str
    client: int
    path: Path


@dataclass(frozen=True)
class DrawnFigure:
    """A figure that `promptfed figure` drew: its kind, title, caption and picture."""

    kind: str
    title: str
    caption: str
    path: Path


@dataclass(frozen=True)
class PromptSimilarity:
    """The similarity of the clients' prompts, with and without the mean prompt, and the distance of their labels."""

    cosine: ClientMatrix
    centred: ClientMatrix
    spread: float
    label_distance: ClientMatrix
    label_correlation: float | None
    domain_correlation: float | None


@dataclass(frozen=True)
class DescriptorMap:
    """The clients' descriptors in the plane, and the method that placed them there."""

    kind: str
    points: tuple[tuple[float, float], ...]
    explained: tuple[float, ...]


@dataclass(frozen=True)
class Figures:
    """What a method shows of its first clients, each with its domain and its most frequent class."""

    domain_names: tuple[str, ...]
    domains: tuple[int, ...]
    classes: tuple[int, ...]
    prompts: PromptSimilarity | None
    descriptors: DescriptorMap | None
    attention: ClientMatrix | None
