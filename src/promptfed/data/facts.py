"""What is known about a data set before any of its images is read."""

from pathlib import Path

from promptfed.data import dermoscopic, domainnet, office, shops
from promptfed.data.csv_file import read_rows
from promptfed.data.datasets import CsvFile, FashionShops, Folder, NamedDataset, Npz, find_dataset
from promptfed.data.dermoscopic import DermoscopicFL
from promptfed.data.domainnet import DomainNet
from promptfed.data.folder import scan
from promptfed.data.npz import read_domains
from promptfed.data.office import OfficeCaltech10
from promptfed.data.photos import Photo

# The domains of sets whose files always have the same ones.
DOMAINS = {FashionShops.name: shops.SHOPS, OfficeCaltech10.name: office.DOMAINS, DomainNet.name: domainnet.DOMAINS}


def find_domains(name: str, **chosen: object) -> tuple[str, ...]:
    """Return the names of a data set's domains, without reading any image; a set without domains has one."""
    found = find_dataset(name, chosen)
    if isinstance(found, DermoscopicFL):
        return tuple(dermoscopic.SITES[site] for site in found.sites)
    if isinstance(found, Npz):
        return read_domains(Path(found.path).expanduser())
    listed = list_photos(found)
    if listed is not None:
        return tuple(sorted({photo.domain for photo in listed}))
    return DOMAINS.get(found.name, (found.name,))


def list_photos(found: NamedDataset) -> list[Photo] | None:
    """Return the image files of a user's own photographs; None for a data set of another kind."""
    if isinstance(found, Folder):
        return scan(Path(found.path).expanduser())
    return read_rows(Path(found.path).expanduser()) if isinstance(found, CsvFile) else None
