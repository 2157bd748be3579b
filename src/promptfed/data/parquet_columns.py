"""Which columns of parquet files hold the images and their labels, and what the labels are called."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptfed.core.errors import PromptFedError, choice

USUAL_LABELS = ("label", "labels", "class", "target")  # where nothing else says which column has the classes


@dataclass(frozen=True)
class ParquetColumns:
    """The columns of images, labels and, if there are any, sites and patients; and the names of numbered values."""

    image: str
    label: str
    site: str = ""
    patient: str = ""
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by column

    def used(self) -> list[str]:
        """Return all columns but the images."""
        return [name for name in dict.fromkeys((self.label, self.site, self.patient)) if name]


def find_columns(schema: Any, readme: Path, config: str, given: ParquetColumns, where: str) -> ParquetColumns:
    """Return the columns, as `given` or as the schema tells; `where` is for messages."""
    features = _features(schema) or _features_of_readme(readme, config)
    for key in ("image", "label", "site", "patient"):
        if (name := getattr(given, key)) and name not in schema.names:
            raise choice(f"column (data.{key})", name, schema.names, where)
    pictures = [name for name in schema.names if _is_image(schema.field(name).type, features.get(name))]
    image = given.image or _only("image", pictures, schema.names, where)
    label = given.label or _only("label", _label_columns(schema, features, given, pictures), schema.names, where)
    names = {name: found for name in schema.names if (found := _class_names(features.get(name)))}
    return ParquetColumns(image, label, given.site, given.patient, names)


def _only(key: str, found: Sequence[str], every: Sequence[str], where: str) -> str:
    """Return the one column that can be meant."""
    if len(found) == 1:
        return found[0]
    if not found:
        raise PromptFedError(
            f"No column of {where} looks like the {key}s; choose one by data.{key}: {', '.join(every)}."
        )
    raise PromptFedError(
        f"Several columns of {where} could be the {key}s: {', '.join(found)}. Choose one, such as "
        f"data.{key}={found[0]}."
    )


def _is_image(kind: Any, feature: object) -> bool:
    """Say whether a column holds encoded images: bytes alone, or with the path they come from."""
    import pyarrow

    if isinstance(feature, dict) and feature.get("_type"):
        return bool(feature["_type"] == "Image")
    return _is_bytes(kind) or bool(pyarrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)


def _is_bytes(kind: Any) -> bool:
    import pyarrow

    return bool(pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind))


def _label_columns(
    schema: Any, features: Mapping[str, Any], given: ParquetColumns, pictures: Sequence[str]
) -> list[str]:
    """Return the columns that can be the labels: those with names of classes, else by name, else any short ones."""
    import pyarrow

    others = [name for name in schema.names if name not in (*pictures, given.image, given.site, given.patient)]
    if named := [name for name in others if _class_names(features.get(name))]:
        return named
    types = pyarrow.types
    fit = {
        name
        for name in others
        if any(test(schema.field(name).type) for test in (types.is_integer, types.is_string, types.is_large_string))
    }
    usual = [name for name in USUAL_LABELS if name in fit]
    return usual[:1] or [name for name in others if name in fit]


# -- what the files say about their columns ----------------------------------------------------------------------------


def _features(schema: Any) -> dict[str, Any]:
    """Return the features that the schema's metadata describe, if it has any."""
    try:
        found = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _features_of_readme(readme: Path, config: str) -> dict[str, Any]:
    """Return the features in the head of README.md, in the form of a schema's; {} where there are none."""
    try:
        import yaml

        head = re.match(r"---\s*\n(.*?)\n---", readme.read_text(encoding="utf-8"), re.DOTALL)
        infos = yaml.safe_load(head[1])["dataset_info"] if head else []
    except (ImportError, OSError, ValueError, KeyError, TypeError):
        return {}
    except Exception:  # yaml's own, which cannot be named where yaml is missing
        return {}
    listed = infos if isinstance(infos, list) else [infos]
    fitting = [one for one in listed if isinstance(one, dict) and one.get("config_name", config) == config]
    found = (fitting or listed or [None])[0]
    features = found.get("features") if isinstance(found, dict) else None
    return dict(_feature(one) for one in features if isinstance(one, dict)) if isinstance(features, list) else {}


def _feature(one: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a feature of a README as a schema has it."""
    kind = one.get("dtype")
    if kind == "image":
        return str(one.get("name")), {"_type": "Image"}
    if isinstance(kind, dict) and isinstance(names := kind.get("class_label", {}).get("names"), dict):
        return str(one.get("name")), {
            "_type": "ClassLabel",
            "names": [str(names[key]) for key in sorted(names, key=int)],
        }
    return str(one.get("name")), {}


def _class_names(feature: object) -> list[str]:
    """Return the names of a column's numbers, if it has any."""
    if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
        return []
    names = feature.get("names")
    return [str(name) for name in names] if isinstance(names, Iterable) else []
