"""What `sites doctor` finds: one line for every check, with a verdict and a sentence of advice."""

from dataclasses import dataclass
from enum import StrEnum


class CheckVerdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """One check: its name, its verdict, and a sentence."""

    check: str
    verdict: CheckVerdict
    says: str


def ok(check: str, says: str) -> Finding:
    """Return a check that holds."""
    return Finding(check, CheckVerdict.OK, says)


def warning(check: str, says: str) -> Finding:
    """Return a check that someone should look at."""
    return Finding(check, CheckVerdict.WARNING, says)


def failed(check: str, says: str) -> Finding:
    """Return a check that does not hold."""
    return Finding(check, CheckVerdict.FAILED, says)


def skipped(check: str, says: str) -> Finding:
    """Return a check that could not be made."""
    return Finding(check, CheckVerdict.SKIPPED, says)
