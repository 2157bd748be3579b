"""What a figure is: a title, a caption, the numbers behind it and a plot; written as a picture and a JSON file."""

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from promptfed.analysis.figures.plotting import Plot
from promptfed.core.errors import PromptFedError, choice
from promptfed.core.files import write_sealed

FORMATS = ("png", "svg", "pdf")
DPI = 160


@dataclass(frozen=True)
class Drawing:
    """A figure: its title, what it shows, the numbers behind it, and the plot."""

    title: str
    caption: str
    numbers: Mapping[str, object]
    plot: Plot


def check_place(out: Path) -> None:
    """Refuse a file whose format is not one of ours, before anything is computed."""
    if out.suffix.removeprefix(".").lower() not in FORMATS:
        raise choice("picture format", out.suffix.removeprefix("."), FORMATS, f'"{out}"')


def save(drawing: Drawing, kind: str, out: Path) -> None:
    """Write the picture, and beside it a JSON file with its caption and numbers."""
    from matplotlib import rc_context

    form = out.suffix.removeprefix(".").lower()
    buffer = BytesIO()
    # No date and no random names, so that the same run gives the same file.
    dateless: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {})
    with rc_context({"svg.hashsalt": "promptfed"}):
        drawing.plot.savefig(buffer, format=form, dpi=DPI, metadata=dateless)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part = out.with_name(f".{out.name}.part")
        part.write_bytes(buffer.getvalue())
        part.replace(out)
        about = {"kind": kind, "title": drawing.title, "caption": drawing.caption, "numbers": drawing.numbers}
        write_sealed(out.with_suffix(".json"), about)
    except OSError as error:
        raise PromptFedError(f'The figure cannot be written to "{out}": {error.strerror}.') from error
