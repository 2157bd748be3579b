"""Images in parquet files: a data set of the Hugging Face hub by name, or a folder in the same layout."""

import io
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any, ClassVar

from PIL import Image

from promptfed.core.errors import PromptFedError, choice
from promptfed.core.options import Count, Share, Whole
from promptfed.data.dataset import Dataset
from promptfed.data.own_photos import own_album, read_own
from promptfed.data.parquet_columns import ParquetColumns, find_columns
from promptfed.data.photos import Album, Photo, open_rgb, require_trained

HUB_NAME = r"([\w-][\w.-]*/)?[\w-][\w.-]*(@[\w./-]+)?"  # OWNER/NAME or OWNER/NAME@REVISION
CONVERTED = "refs/convert/parquet"  # where the hub keeps its own conversion of other formats
WORDS = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("val", "valid", "validation", "dev"), "val"
)
DEFAULT = "default"

log = logging.getLogger("promptfed")
_reading = Lock()


@dataclass(frozen=True)
class HubParquet:
    """Images in parquet files: a data set of the hub by name (OWNER/NAME or OWNER/NAME@COMMIT), or a folder."""

    name: ClassVar[str] = "hf"
    path: str
    size: Count = 32
    image: str = ""  # the columns; empty: as the files themselves say
    label: str = ""
    site: str = ""
    patient: str = ""
    config: str = ""  # of several configurations
    test_fraction: Share = 0.2
    skip_corrupt: bool = False
    seed: Whole = 0

    def load(self) -> Dataset:
        """Decode the images, and set test images aside unless there is a split of them."""
        return read_own(self.album(), self.size, self.skip_corrupt, self.test_fraction, self.seed)

    def album(self) -> Album:
        """Return the images that the files hold, unread."""
        import_parquet()
        root = find_folder(self.path)
        config, parts = _chosen(root, self.config)
        columns = _columns(self, root, config, [path for _, path in parts])
        photos, order = _photos(root, parts, columns)
        require_trained(photos, root)
        name = re.sub(r"@.*", "", self.path).rstrip("/").rpartition("/")[2] or root.resolve().name
        album = own_album(name if not Path(self.path).exists() else root.resolve().name, root, photos)
        classes = tuple(sorted(album.classes, key=lambda label: (order.get(label, 0), label)))
        read = partial(_open, columns.image)
        return replace(album, classes=classes, read=read, recipe=f"|{columns.image}|{config}")


def import_parquet() -> ModuleType:
    """Return pyarrow's reader of parquet files, or say how to install it."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise PromptFedError('hf:NAME needs the [parquet] extra: pip install "promptfed[parquet]".') from error
    found: ModuleType = pyarrow.parquet
    return found


# -- where the files are --------------------------------------------------------------------------------------------


def find_folder(path: str) -> Path:
    """Return the folder of that name, or the one into which the hub's data set was fetched."""
    local = Path(path).expanduser()
    if local.is_dir():
        return local
    if not re.fullmatch(HUB_NAME, path):
        raise PromptFedError(f"There is no folder {path}, and it is not a name on the hub, such as OWNER/NAME.")
    return _fetched(path)


@lru_cache  # a run lists its images more than once
def _fetched(path: str) -> Path:
    """Fetch the parquet files of a data set on the hub; they are kept in the hub's own cache."""
    try:
        import httpx
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise PromptFedError(
            f'There is no folder {path}, and a name on the hub needs the [hf] extra: pip install "promptfed[hf]".'
        ) from error
    name, _, revision = path.partition("@")
    found = Path()
    try:
        for wanted in [revision] if revision else ["", CONVERTED]:
            pinned = {"revision": wanted} if wanted else {}
            found = Path(
                snapshot_download(name, repo_type="dataset", allow_patterns=["*.parquet", "README.md"], **pinned)
            )
            if any(found.rglob("*.parquet")):
                break
    except (OSError, ValueError, httpx.HTTPError) as error:
        reason = (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
        raise PromptFedError(f"There is no folder {path}, and the hub did not deliver it: {reason}.") from error
    return found


def _chosen(root: Path, wanted: str) -> tuple[str, list[tuple[str, Path]]]:
    """Return the configuration, and its files with the split each belongs to."""
    found: dict[str, list[tuple[str, Path]]] = {}
    for path in sorted(root.rglob("*.parquet"), key=lambda one: one.relative_to(root).as_posix()):
        config, split = _place(path.relative_to(root))
        found.setdefault(config, []).append((split, path))
    if not found:
        raise PromptFedError(f"{root} holds no parquet files.")
    if wanted and wanted not in found:
        raise choice("configuration (data.config)", wanted, found, str(root))
    if len(found) > 1 and not wanted:
        raise PromptFedError(
            f"{root} holds several configurations: {', '.join(found)}. Choose one, such as "
            f"data.config={next(iter(found))}."
        )
    config = wanted or next(iter(found))
    parts = found[config]
    if any(split for split, _ in parts) and (odd := [path.name for split, path in parts if not split]):
        log.warning("%s of %s is in no split and is left out", ", ".join(odd), root)
        parts = [(split, path) for split, path in parts if split]
    return config, [(split or "train", path) for split, path in parts]


def _place(relative: Path) -> tuple[str, str]:
    """Return the configuration and the split ("" for none) of a file, by its name and its folders."""
    split = next((WORDS[word] for word in re.split(r"[-_.]", relative.stem.lower()) if word in WORDS), "")
    folders = []
    for part in relative.parts[:-1]:
        word = next((WORDS[one] for one in re.split(r"[-_.]", part.lower()) if one in WORDS), "")
        if word:
            split = split or word
        elif part != "data":
            folders.append(part)
    return "/".join(folders) or DEFAULT, split


# -- what is in them ------------------------------------------------------------------------------------------------


def _columns(chosen: HubParquet, root: Path, config: str, paths: Sequence[Path]) -> ParquetColumns:
    """Return the columns, which all files must have."""
    schemas = [_parquet(import_parquet().read_schema, path) for path in paths]
    given = ParquetColumns(chosen.image, chosen.label, chosen.site, chosen.patient)
    columns = find_columns(schemas[0], root / "README.md", config, given, str(root))
    for path, schema in zip(paths, schemas, strict=True):
        for name in (columns.image, *columns.used()):
            if name not in schema.names:
                raise PromptFedError(f'{path} lacks the column "{name}", which {paths[0].name} has.')
    return columns


def _parquet(read: Any, path: Path, **options: Any) -> Any:
    try:
        return read(path, **options)
    except (OSError, ValueError) as error:  # pyarrow's own are kinds of these
        raise PromptFedError(f"{path} is not a complete parquet file.") from error


def _photos(
    root: Path, parts: Sequence[tuple[str, Path]], columns: ParquetColumns
) -> tuple[list[Photo], dict[str, int]]:
    """Return a photograph for each labelled row, and the place of every class in the order of the set itself."""
    photos: list[Photo] = []
    order: dict[str, int] = {}
    unlabelled = 0
    for split, path in parts:
        table = _parquet(import_parquet().read_table, path, columns=columns.used())
        values = {name: table.column(name).to_pylist() for name in columns.used()}
        for row, label in enumerate(values[columns.label]):
            if label is None or (isinstance(label, int) and label < 0):  # as hidden labels of test images are written
                unlabelled += 1
                continue
            called = _called(columns.label, label, columns.names, path, row)
            order[called] = label if isinstance(label, int) else 0
            domain, patient = (
                _called(name, values[name][row], columns.names, path, row) if name else ""
                for name in (columns.site, columns.patient)
            )
            shown = f"row {row} of {path.relative_to(root).as_posix()}"
            photos.append(Photo(path, split == "test", domain, called, split == "val", (), patient, row, shown))
    if unlabelled:
        log.warning("%d rows of %s have no label and are left out", unlabelled, root)
    if not photos:
        raise PromptFedError(f'No row of {root} has a label in the column "{columns.label}".')
    if any(photo.val for photo in photos) and not any(photo.test for photo in photos):
        photos = [replace(photo, test=photo.val, val=False) for photo in photos]
    return photos, order


def _called(column: str, value: object, names: Mapping[str, Sequence[str]], path: Path, row: int) -> str:
    """Return what a value is called."""
    if value is None or value == "":
        return "unknown"
    known = names.get(column)
    if not known or not isinstance(value, int):
        return str(value)
    if not 0 <= value < len(known):
        raise PromptFedError(
            f'{path}, row {row}: "{column}" is {value}, but there are names for 0 to {len(known) - 1}.'
        )
    return known[value]


def _open(column: str, photo: Photo) -> Image.Image:
    """Return the image of a row in its own size."""
    with _reading:  # several threads want the same rows
        starts = _starts(photo.path)
        group = max(number for number, start in enumerate(starts) if start <= photo.row)
        value = _rows(photo.path, group, column)[photo.row - starts[group]].as_py()
    content = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(content, bytes):
        raise ValueError("it has no bytes")
    return open_rgb(io.BytesIO(content))


@lru_cache(maxsize=256)
def _starts(path: Path) -> list[int]:
    """Return the number of the first row of each group of rows that has any."""
    about = _parquet(import_parquet().read_metadata, path)
    starts = [0]
    for group in range(about.num_row_groups):
        starts.append(starts[-1] + about.row_group(group).num_rows)
    return starts[:-1]


@lru_cache(maxsize=2)  # rows come in order
def _rows(path: Path, group: int, column: str) -> Any:
    """Return the images of a group of rows, encoded."""
    with _parquet(import_parquet().ParquetFile, path) as file:
        return file.read_row_group(group, columns=[column]).column(column)
