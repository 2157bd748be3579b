"""What is to be served, and how: all that a process needs in order to answer."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from promptfed.serving.limits import ServingLimits


@dataclass(frozen=True)
class ServingPlan:
    """The bundles and how they are served; it can be handed to another process."""

    bundles: tuple[Path, ...]
    limits: ServingLimits = field(default_factory=ServingLimits)
    device: str = "auto"
    precision: str = ""
    graphs: bool = True
    tokens: Path | None = None
    hosts: frozenset[str] | None = None  # the names it answers to; None: any
    certificate: tuple[Path, Path] | None = None  # and its key

    def to_json(self) -> str:
        """Write it down."""
        found = asdict(self) | {"bundles": _texts(self.bundles), "tokens": _text(self.tokens)}
        found["hosts"] = None if self.hosts is None else sorted(self.hosts)
        found["certificate"] = None if self.certificate is None else _texts(self.certificate)
        return json.dumps(found)

    @classmethod
    def from_json(cls, text: str) -> "ServingPlan":
        """Read what was written down."""
        found = json.loads(text)
        certificate = found["certificate"]
        return cls(
            bundles=tuple(map(Path, found["bundles"])),
            limits=ServingLimits(**found["limits"]),
            device=found["device"],
            precision=found["precision"],
            graphs=found["graphs"],
            tokens=None if found["tokens"] is None else Path(found["tokens"]),
            hosts=None if found["hosts"] is None else frozenset(found["hosts"]),
            certificate=None if certificate is None else (Path(certificate[0]), Path(certificate[1])),
        )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _texts(paths: Sequence[Path]) -> list[str]:
    return [str(path) for path in paths]
