"""Small data sets in the layouts of Office-Caltech10, DomainNet and Dermoscopic-FL; every image has one colour."""

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image

from promptfed.data.domainnet import DOMAINS

CSV = "image_id,label,label_binary,lesion_id,dx,dx_type,age,sex,localization,dataset\n"


def paint(path: Path, level: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 4), (level, level, level)).save(path.with_suffix(".png"))
    path.with_suffix(".png").rename(path)  # the bytes of a PNG, whose colours are exact, under the listed name


def write_office(root: Path, train: Mapping[str, int], test: int = 1) -> Path:
    """Write so many training images per domain; image n has level n and class n modulo 2, bike or mug."""
    lists: dict[str, dict[str, list[str]]] = {}
    for domain, count in train.items():
        names = [f"{domain}/{('bike', 'mug')[n % 2]}/frame_{n:04}.jpg" for n in range(count + test)]
        lists[domain] = {"train": names[:count], "test": names[count:]}
        for level, name in enumerate(names):
            paint(root / name, level)
    (root / "fedbn_split.json").write_text(json.dumps(lists))
    return root


def write_domainnet(root: Path, classes: Sequence[str], train: int, test: int = 1, lists: str = "") -> Path:
    """Write so many training and test images of each class in each domain, listed in order of class."""
    (root / lists).mkdir(parents=True, exist_ok=True)
    for domain in DOMAINS:
        lines: dict[str, list[str]] = {"train": [], "test": []}
        for number, name in enumerate(classes):
            for n in range(train + test):
                path = f"{domain}/{name}/{domain}_{number:03}_{n:06}.jpg"
                paint(root / path, 10 * number + n)
                lines["train" if n < train else "test"].append(f"{path} {number}\n")
        for split, content in lines.items():
            (root / lists / f"{domain}_{split}.txt").write_text("".join(content))
    return root


def write_csvs(root: Path, sizes: Mapping[str, Sequence[int]]) -> list[str]:
    """Write the lists of each site, with so many rows for training, validation and testing; return the image ids."""
    ids: list[str] = []
    for site, counts in sizes.items():
        folder = root / "csv_folder" / f"client{site}"
        folder.mkdir(parents=True)
        for split, count in zip(("train", "valid", "test"), counts, strict=True):
            names = [f"ISIC_{len(ids) + n:07}" for n in range(count)]
            rows = [f"{name},{n % 3},{n % 3 // 2},HAM_{n},nv,histo,50,male,back,x\n" for n, name in enumerate(names)]
            (folder / f"{split}_client{site}.csv").write_text(CSV + "".join(rows))
            ids += names
    return ids


def zipped(folder: Path, path: Path) -> Path:
    """Pack all of a folder."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder))
    return path
