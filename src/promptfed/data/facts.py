"""What is known about a data set before any of its images is read."""

from pathlib import Path

from promptfed.data import dermoscopic, domainnet, office, published, retina, shops
from promptfed.data.celeba import CelebA
from promptfed.data.datasets import CsvFile, FashionShops, Folder, NamedDataset, Npz, find_dataset
from promptfed.data.dermoscopic import DermoscopicFL
from promptfed.data.dicom import Dicom
from promptfed.data.domainnet import DomainNet
from promptfed.data.npz import read_domains
from promptfed.data.office import OfficeCaltech10
from promptfed.data.own_photos import OwnPhotos
from promptfed.data.parquet import HubParquet
from promptfed.data.published import Office31
from promptfed.data.retina import Retina

OWN_KINDS = (CsvFile, Dicom, Folder, HubParquet)

# The domains of sets whose files always have the same ones.
DOMAINS = {
    DomainNet.name: domainnet.DOMAINS,
    FashionShops.name: shops.SHOPS,
    Office31.name: published.CAMERAS,
    OfficeCaltech10.name: office.DOMAINS,
    Retina.name: retina.SITES,
}


def find_domains(name: str, **chosen: object) -> tuple[str, ...]:
    """Return the names of a data set's domains, without reading any image; a set without domains has one."""
    found = find_dataset(name, chosen)
    if isinstance(found, DermoscopicFL):
        return tuple(dermoscopic.SITES[site] for site in found.sites)
    if isinstance(found, CelebA):
        return found.domains()
    if isinstance(found, Npz):
        return read_domains(Path(found.path).expanduser())
    if (own := own_photos(found)) is not None:
        return own.album().domains
    return DOMAINS.get(found.name, (found.name,))


def own_photos(found: NamedDataset) -> OwnPhotos | None:
    """Return a data set of a user's own photographs, which are listed before they are read; None for another."""
    return found if isinstance(found, OWN_KINDS) else None
