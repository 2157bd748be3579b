"""CelebA (Liu et al. 2015): faces of people known by number: one person, or everyone with enough images."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from promptfed.core.errors import PromptFedError
from promptfed.core.options import Count, Share, Whole
from promptfed.data.by_hand import folders_of
from promptfed.data.dataset import Dataset
from promptfed.data.photos import Album, Photo, read_album
from promptfed.data.split import fewer, stratified

IDENTITIES = "identity_CelebA.txt"
FOLDERS = ("img_align_celeba", "img_celeba", "images", ".")


@dataclass(frozen=True)
class CelebA:
    """CelebA by identity: the faces of one person, or of everyone with at least `least` images."""

    name: ClassVar[str] = "celeba"
    identity: Whole = 2820  # the person's number; 0: everyone
    least: Count = 20  # images of a person, if everyone is taken
    size: Count = 64
    test_fraction: Share = 0.2
    limit: Whole = 0  # training images per person; 0: all
    skip_corrupt: bool = False
    seed: Whole = 0

    def load(self) -> Dataset:
        """Decode the faces, and set test images of each person aside."""
        (root,) = folders_of(self.name)
        everyone = read_identities(root)
        counts = Counter(everyone.values())
        chosen = {who for who, count in counts.items() if count >= self.least} if not self.identity else {self.identity}
        photos = [Photo(path, False, self.name, str(who)) for path, who in everyone.items() if who in chosen]
        if not photos:
            wanted = f"identity {self.identity}" if self.identity else f"anyone with {self.least} images"
            raise PromptFedError(f"{root} has no images of {wanted}.")
        people = tuple(str(who) for who in sorted({int(photo.label) for photo in photos}))
        album = Album(self.name, root, photos, people, (self.name,))
        cache = f"data/{self.name}/parsed/{self.identity}-{self.least}"
        data = read_album(album, self.size, self.skip_corrupt, cache)
        test = stratified(data.labels, data.domains, self.test_fraction, self.seed)
        return fewer(replace(data, test=test), self.limit)


def read_identities(root: Path) -> dict[Path, int]:
    """Return who is on each image of the official list, in its order."""
    found = sorted(root.rglob(IDENTITIES))
    if not found:
        raise PromptFedError(f"{root} lacks {IDENTITIES}, the list of who is on which image of celeba.")
    try:
        rows = [line.split() for line in found[0].read_text(encoding="utf-8").splitlines() if line.strip()]
        listed = {name: int(who) for name, who in rows}
    except (OSError, ValueError) as problem:
        raise PromptFedError(f"{found[0]} is not a list of lines such as 000001.jpg 2880: {problem}.") from problem
    folder = _folder(found[0], next(iter(listed), ""))
    return {folder / name: who for name, who in listed.items()}


def _folder(listing: Path, image: str) -> Path:
    """Return the folder with the listed images: beside the list, or beside the folder it is in."""
    for folder in (top / name for top in (listing.parent, listing.parent.parent) for name in FOLDERS):
        if image and (folder / image).is_file():
            return folder
    raise PromptFedError(
        f'The images of {listing} ("{image}" is the first) are not in a folder beside it, such as {FOLDERS[0]}.'
    )
