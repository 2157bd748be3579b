"""What the server counts, as Prometheus reads it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


@dataclass
class Histogram:
    """How many values were at most each bound."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value."""
        place = next((place for place, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        self.counts[place] += 1
        self.total += value

    def absorb(self, counts: Sequence[int], total: float) -> None:
        """Add what another histogram with these bounds has counted."""
        self.counts = [mine + more for mine, more in zip(self.counts, counts, strict=True)]
        self.total += total

    def lines(self, name: str, label: str = "") -> list[str]:
        """Return its lines in Prometheus' text format."""
        found, seen, comma = [], 0, f"{label}," if label else ""
        for bound, count in zip([*map(_number, self.bounds), "+Inf"], self.counts, strict=True):
            seen += count
            found.append(f'{name}_bucket{{{comma}le="{bound}"}} {seen}')
        braces = f"{{{label}}}" if label else ""
        return [*found, f"{name}_sum{braces} {self.total:.6f}", f"{name}_count{braces} {seen}"]


@dataclass
class Monitor:
    """Everything that is counted; no label says who asked."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    latency: dict[str, Histogram] = field(default_factory=dict)
    batches: Histogram = field(default_factory=lambda: Histogram(SIZES))
    images: int = 0
    reloads: int = 0

    def add(self, route: str, status: int, seconds: float) -> None:
        """Count a request that has been answered."""
        self.requests[route, status] += 1
        self.latency.setdefault(route, Histogram(SECONDS)).add(seconds)

    def batch(self, size: int) -> None:
        """Count a batch."""
        self.batches.add(size)
        self.images += size

    def counted(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "requests": [[route, status, count] for (route, status), count in self.requests.items()],
            "latency": [[route, one.counts, one.total] for route, one in self.latency.items()],
            "batches": [self.batches.counts, self.batches.total],
            "images": self.images,
            "reloads": self.reloads,
        }

    def absorb(self, counted: Mapping[str, Any]) -> None:
        """Add what another process has counted; a reload happens in all of them, and counts once."""
        for route, status, count in counted["requests"]:
            self.requests[route, status] += count
        for route, counts, total in counted["latency"]:
            self.latency.setdefault(route, Histogram(SECONDS)).absorb(counts, total)
        self.batches.absorb(*counted["batches"])
        self.images += counted["images"]
        self.reloads = max(self.reloads, counted["reloads"])

    def text(self, waiting: int, clients: int) -> str:
        """Return all of it in Prometheus' text format."""
        parts = [
            *_head("promptfed_requests_total", "counter", "Requests answered, by route and status."),
            *(
                f'promptfed_requests_total{{route="{route}",status="{status}"}} {count}'
                for (route, status), count in sorted(self.requests.items())
            ),
            *_head("promptfed_request_seconds", "histogram", "Seconds from a request to its answer."),
        ]
        for route, histogram in sorted(self.latency.items()):
            parts += histogram.lines("promptfed_request_seconds", f'route="{route}"')
        parts += _head("promptfed_batch_images", "histogram", "Images in a batch.")
        parts += self.batches.lines("promptfed_batch_images")
        for name, kind, about, value in (
            ("promptfed_images_total", "counter", "Images the backbone has seen.", self.images),
            ("promptfed_reloads_total", "counter", "Times the bundles were opened again.", self.reloads),
            ("promptfed_queue_images", "gauge", "Images that wait for a batch.", waiting),
            ("promptfed_clients", "gauge", "Clients that are served.", clients),
        ):
            parts += [*_head(name, kind, about), f"{name} {value}"]
        return "\n".join(parts) + "\n"


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _number(value: float) -> str:
    return f"{value:g}"
