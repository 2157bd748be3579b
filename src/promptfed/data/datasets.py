"""Data sets by name: each is a frozen dataclass of its options that knows how to load itself."""

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from promptfed.core import options
from promptfed.core.errors import PromptFedError, choice
from promptfed.core.options import Count, Share, Whole
from promptfed.data import celeba, dermoscopic, domainnet, flowers, office, published, retina
from promptfed.data.archives import read_cifar10, read_cifar100, read_fashion_mnist, read_tiny_imagenet
from promptfed.data.by_hand import register, status_of
from promptfed.data.celeba import CelebA
from promptfed.data.csv_file import read_rows
from promptfed.data.dataset import Dataset
from promptfed.data.dermoscopic import DermoscopicFL
from promptfed.data.dicom import Dicom
from promptfed.data.domainnet import DomainNet
from promptfed.data.download import REMOTES, digest, fetch, home
from promptfed.data.flowers import Flowers102
from promptfed.data.folder import scan
from promptfed.data.npz import read_npz, read_sides
from promptfed.data.office import OfficeCaltech10
from promptfed.data.own_photos import own_album, read_own
from promptfed.data.parquet import HubParquet
from promptfed.data.parsed import cached
from promptfed.data.photos import Album
from promptfed.data.published import Caltech101, EuroSAT, Food101, Office31, OxfordPets, StanfordCars
from promptfed.data.retina import Retina
from promptfed.data.shops import EMBEDDED, load_shops
from promptfed.data.split import fewer

# Folders in which a system package may already have put the official files.
INSTALLED = {"fashion-mnist": Path("/usr/share/datasets/fashion-mnist")}


# Data sets that may not be redistributed: what the user's copy must look like, and whether it comes in parts.
BY_HAND: dict[str, tuple[Callable[[Path], object], bool]] = {
    **{kind.name: (kind.find, False) for kind in published.ALL},
    CelebA.name: (celeba.read_identities, False),
    DermoscopicFL.name: (dermoscopic.check, True),
    DomainNet.name: (domainnet.check, False),
    Flowers102.name: (flowers.find_photos, False),
    OfficeCaltech10.name: (office.read_lists, False),
    Retina.name: (retina.check, True),
}


class NamedDataset(Protocol):
    """What a data set must offer: a name, its options as dataclass fields, and `load`."""

    name: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def load(self) -> Dataset:
        """Return the images, reading or downloading them if need be."""


@dataclass(frozen=True)
class FashionShops:
    """The embedded set: 8,000 photographs of clothes from Fashion-MNIST as four shops show them, 32 × 32."""

    name: ClassVar[str] = "fashion-shops"
    limit: Whole = 0  # training images kept per class and shop; 0: all
    only: str = ""  # the name of one class, as a concept to learn; empty: all of them

    def load(self) -> Dataset:
        """Return the four shops."""
        return fewer(load_shops(self.only), self.limit)


@dataclass(frozen=True)
class FashionMnist:
    """Fashion-MNIST: 60,000 + 10,000 grey photographs of 10 kinds of clothes, padded to 32 × 32."""

    name: ClassVar[str] = "fashion-mnist"
    limit: Whole = 0  # training images per class; 0: all

    def load(self) -> Dataset:
        """Read the four official files."""
        return fewer(_parsed(self.name, lambda paths: read_fashion_mnist(paths[0].parent)), self.limit)


@dataclass(frozen=True)
class Cifar10:
    """CIFAR-10: 50,000 + 10,000 photographs of 10 kinds of things, 32 × 32."""

    name: ClassVar[str] = "cifar10"
    limit: Whole = 0

    def load(self) -> Dataset:
        """Read cifar-10-python.tar.gz."""
        return fewer(_parsed(self.name, lambda paths: read_cifar10(paths[0])), self.limit)


@dataclass(frozen=True)
class Cifar100:
    """CIFAR-100: 50,000 + 10,000 photographs of 100 fine or 20 coarse kinds of things, 32 × 32."""

    name: ClassVar[str] = "cifar100"
    labels: Literal["fine", "coarse"] = "fine"
    limit: Whole = 0

    def load(self) -> Dataset:
        """Read cifar-100-python.tar.gz."""
        read = _parsed(self.name, lambda paths: read_cifar100(paths[0], self.labels), variant=self.labels)
        return fewer(read, self.limit)


@dataclass(frozen=True)
class TinyImageNet:
    """Tiny ImageNet: 100,000 + 10,000 photographs of 200 kinds of things, 64 × 64."""

    name: ClassVar[str] = "tiny-imagenet"
    limit: Whole = 0

    def load(self) -> Dataset:
        """Read tiny-imagenet-200.zip."""
        return fewer(_parsed(self.name, lambda paths: read_tiny_imagenet(paths[0])), self.limit)


@dataclass(frozen=True)
class Npz:
    """A user's own arrays: x_train, y_train, x_test, y_test, or x and y, in the .npz file at `path`."""

    name: ClassVar[str] = "npz"
    path: str
    test_fraction: Share = 0.2
    seed: Whole = 0

    def load(self) -> Dataset:
        """Read the file."""
        return read_npz(Path(self.path).expanduser(), self.test_fraction, self.seed)


@dataclass(frozen=True)
class Folder:
    """A user's own photographs at `path`: class/*.jpg or domain/class/*.jpg, optionally under train/ and test/."""

    name: ClassVar[str] = "folder"
    path: str
    size: Count = 32
    test_fraction: Share = 0.2
    skip_corrupt: bool = False
    seed: Whole = 0

    def load(self) -> Dataset:
        """Decode the photographs, and set test images aside unless the folders do."""
        return read_own(self.album(), self.size, self.skip_corrupt, self.test_fraction, self.seed)

    def album(self) -> Album:
        """Return the photographs that the folders hold, unread."""
        root = Path(self.path).expanduser()
        return own_album(root.resolve().name, root, scan(root))


@dataclass(frozen=True)
class CsvFile:
    """A user's own photographs, listed in the CSV file at `path`: columns path, label and, if known, site and split."""

    name: ClassVar[str] = "csv"
    path: str
    size: Count = 32
    test_fraction: Share = 0.2
    skip_corrupt: bool = False
    seed: Whole = 0

    def load(self) -> Dataset:
        """Decode the photographs, and set test images aside unless the file does."""
        return read_own(self.album(), self.size, self.skip_corrupt, self.test_fraction, self.seed)

    def album(self) -> Album:
        """Return the photographs that the file lists, unread."""
        path = Path(self.path).expanduser()
        return own_album(path.stem, path, read_rows(path))


_ALL: tuple[type[NamedDataset], ...] = (
    Caltech101,
    CelebA,
    Cifar10,
    Cifar100,
    CsvFile,
    DermoscopicFL,
    Dicom,
    DomainNet,
    EuroSAT,
    FashionMnist,
    FashionShops,
    Flowers102,
    Folder,
    Food101,
    HubParquet,
    Npz,
    Office31,
    OfficeCaltech10,
    OxfordPets,
    Retina,
    StanfordCars,
    TinyImageNet,
)
DATASETS: dict[str, type[NamedDataset]] = {kind.name: kind for kind in _ALL}
# The height and width of the images of sets without the option `size`.
SIDES = {FashionShops.name: 32, FashionMnist.name: 32, Cifar10.name: 32, Cifar100.name: 32, TinyImageNet.name: 64}


def open_dataset(name: str, **chosen: object) -> Dataset:
    """Load a data set by name, with its options by name; names such as `folder:PATH` carry their path."""
    dataset = find_dataset(name, chosen).load()
    for what, names in (("Class", dataset.classes), ("Domain", dataset.domain_names)):
        if strange := [one for one in names if not one.isprintable()]:
            raise PromptFedError(f"{what} {strange[0]!a} of {dataset.name} cannot be shown; rename it.")
    return dataset


def find_sides(name: str, **chosen: object) -> tuple[int, int]:
    """Return the height and width of a data set's images without reading any of them."""
    found = find_dataset(name, chosen)
    if isinstance(found, Npz):
        return read_sides(Path(found.path).expanduser())
    side = SIDES.get(found.name) or int(vars(found)["size"])
    return side, side


def find_dataset(name: str, chosen: Mapping[str, object]) -> NamedDataset:
    """Return the data set of that name with those options, checked."""
    kind, colon, path = name.partition(":")
    if kind not in DATASETS and (found := _own_form(Path(name))):
        raise PromptFedError(f'Unknown data set "{name}"; to use what is there, write {found}:{name}.')
    if kind not in DATASETS:
        raise choice("data set", kind, DATASETS)
    wanted = {field.name for field in fields(DATASETS[kind]) if field.default is MISSING}
    if colon and "path" not in wanted:
        raise PromptFedError(f'Data set "{kind}" takes no path: write {kind} instead of {name}.')
    given = {**({"path": path} if path else {}), **chosen}
    if wanted - set(given):
        raise PromptFedError(f'Data set "{kind}" needs a path: write {kind}:PATH.')
    hints, checked = options.hints(DATASETS[kind]), {}
    for key, value in given.items():
        if key not in hints:
            raise choice("option", key, hints, f'data set "{kind}"')
        checked[key] = options.typed(f"data.{key}", str(value) if isinstance(value, Path) else value, hints[key])
    return DATASETS[kind](**checked)


def _own_form(path: Path) -> str:
    """Return what the user's own photographs at a path are called; empty if there is nothing of the kind."""
    suffix = path.suffix.lower().removeprefix(".")
    return "folder" if path.is_dir() else suffix if suffix in ("csv", "npz") and path.is_file() else ""


def add(name: str, path: Path, *, verify: bool = True) -> Path:
    """Copy official files from disk into the data home, checksums verified, and return where they are.

    `path` is the archive, or a folder that holds the official files, or one of several such files. A set that cannot
    be downloaded has no official archive: its zip is unpacked, its folder used where it is, once the layout is right.
    """
    if name in BY_HAND:
        return register(name, path, *BY_HAND[name])
    if name not in REMOTES:
        raise choice("data set to add", name, [*REMOTES, *BY_HAND])
    remotes, folder = REMOTES[name], home() / "data" / name
    alone = len(remotes) == 1 and not path.is_dir()
    around = path if path.is_dir() else path.parent
    sources = [path] if alone else [around / remote.file for remote in remotes]
    for remote, source in zip(remotes, sources, strict=True):
        if not source.is_file():
            raise PromptFedError(f'There is no file {source}; data set "{name}" needs {remote.file}.')
        right = (remote.checksum, *remote.also)
        if verify and (actual := digest(source)) not in right:
            raise PromptFedError(f"{source} has checksum {actual} instead of {remote.checksum}: not the official file.")
    folder.mkdir(parents=True, exist_ok=True)
    for remote, source in zip(remotes, sources, strict=True):
        copy = folder / f"{remote.file}.copy"
        shutil.copyfile(source, copy)
        copy.replace(folder / remote.file)
    return folder / remotes[0].file if len(remotes) == 1 else folder


class Status(NamedTuple):
    """Whether a data set is on this machine, where it is or would go, and its files' size in bytes."""

    name: str
    present: bool
    where: Path
    size: int


def status() -> list[Status]:
    """Return, for every data set with files of its own, whether they are here."""
    found = [Status(FashionShops.name, True, EMBEDDED, EMBEDDED.stat().st_size)]
    for name, remotes in REMOTES.items():
        paths = _present(name)
        size = sum(path.stat().st_size for path in paths) if paths else sum(remote.size for remote in remotes)
        found.append(Status(name, bool(paths), paths[0].parent if paths else home() / "data" / name, size))
    return sorted(found + [Status(name, *status_of(name)) for name in BY_HAND])


def _present(name: str) -> list[Path]:
    """Return the paths of a set's files, from the data home or a system package, or [] unless all are there."""
    for folder in [home() / "data" / name, *([INSTALLED[name]] if name in INSTALLED else [])]:
        paths = [folder / remote.file for remote in REMOTES[name]]
        if all(path.is_file() for path in paths):
            return paths
    return []


def _parsed(name: str, read: Callable[[list[Path]], Dataset], variant: str = "all") -> Dataset:
    """Return what `read` makes of a set's files, downloaded if need be; kept until one of the files changes."""
    folder = home() / "data" / name
    paths = _present(name)
    if not paths:
        paths = [folder / remote.file for remote in REMOTES[name]]
        for remote, path in zip(REMOTES[name], paths, strict=True):
            if not path.is_file():
                fetch(remote.url, path, remote.checksum, name=name)
    key = hashlib.sha256("".join(map(digest, paths)).encode()).hexdigest()[:32]
    return cached(folder / "parsed" / variant, key, lambda _: read(paths))
