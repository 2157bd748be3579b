"""fed.toml: who takes part, where the coordinator is, and the rules of a round."""

import re
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from promptfed.core import options
from promptfed.core.errors import PromptFedError, choice
from promptfed.core.options import Count, Positive, Whole


@dataclass(frozen=True)
class Federation:
    """A federation: its sites by name, client 0 first, and how long and for how many of them a round waits."""

    sites: tuple[str, ...]
    name: str = "promptfed"
    coordinator: str = "localhost"  # the host name under which sites reach it, as in its certificate
    port: Count = 8002
    admin_port: Count = 8003
    classes: tuple[str, ...] = ()  # needed where not every site has images of every class
    min_sites: Whole = 0  # answers that a round needs to count; 0: all
    round_seconds: Positive = 3600.0  # a round closes at this deadline with those who answered
    patience_seconds: Positive = 86400.0  # how long a round with too few answers is repeated
    answer_mb: Positive = 1024.0  # the largest answer that is accepted
    max_images: Count = 10_000_000  # the most training, or test, images that a site may declare
    max_ratio: Positive = 100.0  # the most that a site may count, in units of the other sites' median
    max_change: Positive = 1000.0  # the longest change that is accepted, in units of the other sites' median

    @property
    def answer_bytes(self) -> int:
        """Return how many bytes the largest answer may have."""
        return int(self.answer_mb * 2**20)

    @property
    def needed(self) -> int:
        """Return how many answers a round needs."""
        return self.min_sites or len(self.sites)


MOST_PORT = 65535
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def read_federation(path: Path) -> Federation:
    """Read fed.toml and refuse what could not work."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PromptFedError(f"The federation {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PromptFedError(f"The federation {path} is not valid TOML: {error}.") from error
    return make_federation(content, str(path))


def make_federation(content: dict[str, object], where: str) -> Federation:
    """Return the federation of these keys."""
    unknown = [key for key in content if key not in {field.name for field in fields(Federation)}]
    if unknown:
        raise choice("key", unknown[0], [field.name for field in fields(Federation)], where)
    made = options.make(Federation, content, "federation")
    if not made.sites:
        raise PromptFedError(f'{where} names no sites; write for example sites = ["north", "south"].')
    for name in (*made.sites, made.name):
        if not NAME.fullmatch(name):
            raise PromptFedError(f'"{name}" in {where} is not a valid name; use a-z, 0-9 and inner hyphens.')
    for key in ("port", "admin_port"):
        if getattr(made, key) > MOST_PORT:
            raise PromptFedError(f"{key}={getattr(made, key)} in {where} is too high; ports end at {MOST_PORT}.")
    if made.port == made.admin_port:
        raise PromptFedError(f"port and admin_port in {where} are both {made.port}; each needs its own.")
    if len(set(made.classes)) < len(made.classes):
        raise PromptFedError(f"{where} names a class twice.")
    if len(set(made.sites)) < len(made.sites):
        raise PromptFedError(f"{where} names a site twice.")
    if made.coordinator in made.sites or made.name in made.sites:
        raise PromptFedError(f"{where} gives a site the coordinator's name.")
    if made.min_sites > len(made.sites):
        raise PromptFedError(f"min_sites={made.min_sites} in {where} is more than the {len(made.sites)} sites.")
    return made
