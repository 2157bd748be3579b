"""Reads a site's audit log and checks it: every record, their order, their signatures, and that no end is missing."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptfed.core.errors import PromptFedError
from promptfed.sites.audit_log import FILE, GENESIS, HEAD, Mark, Parsed, older_files, parse, read_head, signed
from promptfed.sites.identity import OWN, confirmed_by, signing_key
from promptfed.sites.wire import Refused

FIRST = Mark(0, GENESIS)  # the place before the first record
KNOWN = re.compile(r"(?P<number>[1-9][0-9]{0,14}):(?P<hash>[0-9a-f]{64})")


@dataclass
class Audit:
    """What a log says, and what is wrong with it."""

    records: list[dict[str, Any]] = field(default_factory=list)  # without those that were changed
    problems: list[str] = field(default_factory=list)
    torn: bool = False  # a last line was cut off by a crash, before its message left
    last: Mark = FIRST


@dataclass(frozen=True)
class RunTotals:
    """What left for one run."""

    run: str
    records: int
    kinds: dict[str, int]  # messages by kind
    refusals: int
    rounds: int
    bytes: int
    epsilon: float | None  # of its noisy answers
    first: float  # when, in seconds since 1970
    last: float


def read_known(text: str) -> Mark:
    """Return the place that a coordinator was told last, as `sites status` prints it."""
    match = KNOWN.fullmatch(text)
    if match is None:
        raise PromptFedError(f'"{text}" is not a record as sites status prints it: its number, a colon, and 64 digits.')
    return Mark(int(match["number"]), match["hash"])


def check_audit(home: Path, since: int = 1, known: Mark | None = None, key: str = "") -> Audit:
    """Check all records in `home` from number `since` on; `key` is the site's public key, without its identity.pem."""
    files = [*older_files(home), *(path for path in (home / FILE,) if path.is_file())]
    if not files and not (home / HEAD).exists():
        raise PromptFedError(f"{home} holds no audit log; name the --home of a site, which has {FILE}.")
    if not key and not (home / OWN).is_file():
        raise PromptFedError(f"{home} has no {OWN}, with which its records are signed; give the site's key by --key.")
    checker = _Checker(key or signing_key(home).public_key().public_bytes_raw().hex(), since, known)
    for path in files:
        for where, line in _lines(path, last=path == files[-1], audit=checker.audit):
            checker.take(where, line)
    checker.finish(home)
    return checker.audit


def totals(records: list[dict[str, Any]]) -> list[RunTotals]:
    """Return what left, run by run, in the order in which they began."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        runs.setdefault(str(record.get("run")), []).append(record)
    return [_totals(run, found) for run, found in runs.items()]


def _totals(run: str, records: list[dict[str, Any]]) -> RunTotals:
    answers = [record for record in records if not record["error"]]
    spent = [record["guards"]["epsilon"] for record in answers if record["guards"].get("epsilon") is not None]
    return RunTotals(
        run=run,
        records=len(records),
        kinds=dict(Counter(str(record["kind"]) for record in answers)),
        refusals=len(records) - len(answers),
        rounds=len({record["round"] for record in answers if record["kind"] == "fit"}),
        bytes=sum(record["bytes"] for record in answers),
        epsilon=max(spent, default=None),
        first=records[0]["time"],
        last=records[-1]["time"],
    )


def _lines(path: Path, last: bool, audit: Audit) -> Iterator[tuple[str, bytes]]:
    """Yield a file's lines and where they are; only the newest file may end in the middle of one."""
    *whole, rest = path.read_bytes().split(b"\n")
    for number, line in enumerate(whole, 1):
        yield f"line {number} of {path.name}", line
    if rest and last:
        audit.torn = True
    elif rest:
        yield f"line {len(whole) + 1} of {path.name}", rest


class _Checker:
    """Takes one line after the other, and says what does not fit."""

    def __init__(self, key: str, since: int, known: Mark | None) -> None:
        self.audit, self.key, self.known = Audit(), key, known
        self.next = since
        self.before: str | None = GENESIS if since == 1 else None  # None: unknown

    def take(self, where: str, line: bytes) -> None:
        parsed = parse(line)
        if parsed is None:
            self._complain(f"{where} was changed: it is no record")
            self.next, self.before = self.next + 1, None
            return
        number = parsed.record["n"]
        if number < self.next and not self.audit.records and not self.audit.problems:
            return  # before the records that are asked for
        if parsed.found != parsed.hash:
            self._complain(f"{where} was changed: record {number} is not what its hash says")
        elif not confirmed_by(self.key, parsed.signature.hex(), signed(parsed.hash)):
            self._complain(f"{where} was changed: record {number} is not signed with this site's key")
        else:
            self._check_place(where, parsed, number)
            self.audit.records.append(parsed.record)
        if self.known is not None and number == self.known.number and parsed.hash != self.known.hash:
            self._complain(f"{where} is not the record {number} that the coordinator was told of")
        self.next, self.before = number + 1, parsed.hash
        if number > self.audit.last.number:
            self.audit.last = Mark(number, parsed.hash)

    def _check_place(self, where: str, parsed: Parsed, number: int) -> None:
        if number > self.next:
            gone = f"record {self.next}" if number == self.next + 1 else f"records {self.next} to {number - 1}"
            self._complain(f"{gone} should come before {where}, and {'is' if ' to ' not in gone else 'are'} missing")
        elif number < self.next:
            self._complain(f"{where} is out of order: record {number} comes where record {self.next} should be")
        elif self.before is not None and parsed.record["before"] != self.before:
            self._complain(f"{where} was changed: record {number} does not follow record {number - 1}")

    def finish(self, home: Path) -> None:
        """Compare the end with audit.head and with what the coordinator was told."""
        last = self.audit.last
        if not (home / HEAD).exists():
            self._complain(f"{HEAD} is missing, which names the last record")
        else:
            try:
                head = read_head(home)
            except Refused:
                self._complain(f"{HEAD} was changed")
            else:
                self._check_end(head, HEAD)
        if self.known is not None and last.number < self.known.number:
            self._complain(
                f"the log ends at record {last.number}, and the coordinator was told of record {self.known.number}"
            )

    def _check_end(self, head: Mark, name: str) -> None:
        last = self.audit.last
        if last.number < head.number:
            self._complain(f"the log ends at record {last.number}, and {name} says that there were {head.number}")
        elif last.number == head.number and last.hash != head.hash:
            self._complain(f"the last record, {last.number}, is not the one that {name} names")

    def _complain(self, problem: str) -> None:
        self.audit.problems.append(problem)
