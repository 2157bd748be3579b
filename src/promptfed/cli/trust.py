"""`promptfed sites terms`, `key`, `audit`, `renew` and `revoke`: what parties may do, have done, and who is out."""

import datetime
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptfed.cli.terminal import complain, console, say
from promptfed.core.errors import PromptFedError
from promptfed.core.printable import printable

if TYPE_CHECKING:
    from promptfed.sites.audit_check import Audit
    from promptfed.sites.kits import Kit
    from promptfed.sites.settings import Federation

Home = Annotated[Path, typer.Option("--federation", help="The folder that `sites init` made.", metavar="DIR")]
HERE = Path("federation")
SiteHome = Annotated[Path, typer.Argument(help="The folder of a site's state, its --home; KIT/state by default.")]


def terms(
    file: Annotated[Path, typer.Argument(help="The terms of a site's owner, a TOML file.", metavar="FILE")],
) -> None:
    """Check a file of terms, and say in plain sentences what it allows.

    A site takes it by: promptfed sites join KIT --data DIR --terms FILE
    """
    from promptfed.sites.terms import read_terms
    from promptfed.sites.terms_in_words import describe_terms

    for sentence in describe_terms(read_terms(file)):
        say(sentence)


def key(
    home: SiteHome,
    members: Annotated[
        bool, typer.Option(help="Also print the keys of all sites that this one has met under masks.")
    ] = False,
) -> None:
    """Print a site's public key, as a line for the [members] of other owners' terms.

    Read it to them over the phone: a coordinator could change what it carries.
    """
    from promptfed.sites.identity import MEMBERS, OWN, signing_key

    if not (home / OWN).is_file():
        raise PromptFedError(f"{home} has no {OWN}; name the --home of a site that has joined once.")
    name, own = _site_name(home), signing_key(home).public_key().public_bytes_raw().hex()
    known = json.loads((home / MEMBERS).read_text(encoding="utf-8")) if (home / MEMBERS).exists() else {}
    for site, public in sorted({name: own, **(known if members else {})}.items()):
        say(f'{site} = "{public}"')


def audit(
    home: SiteHome,
    known: Annotated[
        str, typer.Option(help="The last record the coordinator was told of, as its `sites status` prints it.")
    ] = "",
    since: Annotated[int, typer.Option(help="The first record to check, if older files were moved away.", min=1)] = 1,
    public: Annotated[str, typer.Option("--key", help="The site's key, where identity.pem is not in DIR.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print every record as JSON, for programs.")] = False,
) -> None:
    """Show what has left a site, and check that nothing in its audit log was changed, moved or removed.

    Not to be confused with `promptfed audit`, which attacks a simulated run. Exit code 1: the log does not check out.
    """
    from promptfed.sites.audit_check import check_audit, read_known, totals

    found = check_audit(home, since, read_known(known) if known else None, public)
    if as_json:
        runs = [asdict(run) for run in totals(found.records)]
        last = {"n": found.last.number, "hash": found.last.hash}
        content = {"whole": not found.problems, "problems": found.problems, "last": last}
        typer.echo(json.dumps({**content, "runs": runs, "records": found.records}))
    else:
        _show_audit(found, home)
    if found.problems:
        raise typer.Exit(1)


def _show_audit(found: "Audit", home: Path) -> None:
    from rich.table import Table

    from promptfed.sites.audit_check import totals

    shown = Table(box=None, pad_edge=False)
    for column in ("run", "from", "to", "messages", "refusals", "kB", "ε"):
        left = column in ("run", "from", "to", "messages")
        shown.add_column(column, justify="left" if left else "right", overflow="fold")  # nothing is cut off
    for run in totals(found.records):
        kinds = ", ".join(f"{count} {kind}" for kind, count in run.kinds.items())
        spent = "" if run.epsilon is None else f"{run.epsilon:.3g}"
        times = (_when(run.first), _when(run.last))
        sizes = (str(run.refusals), f"{run.bytes / 1000:,.1f}")
        shown.add_row(*(printable(cell) for cell in (run.run, *times, kinds, *sizes, spent)))
    console.print(shown, markup=False)
    askers = {str(record["to"]) for record in found.records if record["to"]}
    for one in sorted(askers):
        say(f"To the coordinator with the certificate {one}")
    if found.torn:
        say("A record was being written when the site's process ended; it is cut off, and its message never left.")
    for problem in found.problems:
        complain(f"{problem[0].upper()}{problem[1:]}.")
    if found.problems:
        complain(f"The audit log in {home} does not check out.")
    else:
        say(
            f"{len(found.records):,} records, all as they were written; the last is "
            f"{found.last.number}:{found.last.hash}"
        )


def renew(
    sites: Annotated[
        list[str] | None, typer.Argument(help="Sites, `coordinator` or `admin`; everyone by default.", metavar="SITE")
    ] = None,
    home: Home = HERE,
    new_key: Annotated[bool, typer.Option(help="Make a whole new kit; the old key is revoked.")] = False,
) -> None:
    """Make new certificates, good for another 360 days; let a revoked site in again with a new kit.

    Each site gets a small file, which holds no key, and takes it by: promptfed sites join KIT --data DIR --renew FILE.
    Its state, its ledger, its audit log and its models stay. The coordinator's own count from the next `sites start`.
    """
    from promptfed.sites import certificates
    from promptfed.sites.flare_workspace import require_flare

    require_flare()
    made = certificates.renew(home, _federation(home), sites or [], new_key=new_key)
    for site, path in made.items():
        if path.name == f"{site}.zip":
            say(f"New kit for {site}: {path}. Send it over a secure channel: it contains the site's private key.")
            say("The site joins with it and its old --home. Its old key is revoked.")
        else:
            say(f"New certificate for {site}: {path}. It contains no key; the site takes it by: sites join --renew")
    if not set(sites or [certificates.COORDINATOR]) <= made.keys():
        say("The coordinator's own certificates count from the next start of the server: promptfed sites start")


def revoke(
    site: Annotated[str, typer.Argument(help="The site that is out from now on.")],
    home: Home = HERE,
) -> None:
    """Put a site out, at its next message and without a restart. Undo it by: promptfed sites renew SITE.

    A run goes on with the sites that are left, if they are as many as `min_sites`, and else ends with a sentence.
    """
    from promptfed.sites import certificates

    was_in = certificates.revoke(home, _federation(home), site)
    say(f"{site} is revoked." if was_in else f"{site} was revoked already.")


# -- parts of other commands ------------------------------------------------------------------------------------------
def warn_of_certificates(home: Path, federation: "Federation") -> None:
    """Say which sites are revoked, and which certificates end soon."""
    from promptfed.sites import certificates
    from promptfed.sites.revocations import REVOKED, read_revoked

    for site in read_revoked(home / REVOKED)["sites"]:
        say(f"{site} is revoked; it gets a new kit by: promptfed sites renew {site}")
    for one in certificates.validities(home, federation):
        if sentence := one.warning(certificates.now()):
            who = "" if one.party == certificates.ROOT else f" {one.party}"
            say(f"{sentence[0].upper()}{sentence[1:]}; renew it with: promptfed sites renew{who}")


def show_marks(home: Path) -> None:
    """Say where the sites' audit logs were last."""
    from promptfed.sites.oversight import read_audits

    for site, mark in read_audits(home).items():
        say(f"{site}'s audit log was at record {mark['n']}:{mark['hash']} in {mark['run']}")
        if mark["back"]:
            before = ", ".join(map(str, mark["back"]))
            say(f"  it has gone back, from record {before}: ask the site's owner why")


def current_kit(path: Path, kit: "Kit", state: Path) -> "Kit":
    """Return a site's kit with its newest certificate, if that is good; say if it ends soon."""
    from promptfed.sites.certificates import Validity, now
    from promptfed.sites.kits import expiry, newest, require_valid

    found = newest(kit, state)
    require_valid(found, path)
    if sentence := Validity(kit.site, expiry(found)).warning(now()):
        say(f"{sentence[0].upper()}{sentence[1:]}; ask the coordinator to renew it.")
    return found


def show_site(home: Path) -> None:
    """Say how a site is: whether it runs, how long its certificate is good, and what is left of its owner's terms."""
    from cryptography import x509

    from promptfed.sites.audit_log import read_head
    from promptfed.sites.certificates import Validity, now
    from promptfed.sites.identity import STARTUP
    from promptfed.sites.kits import AUTHORITY, CERTIFICATE
    from promptfed.sites.pid_file import running

    name = _site_name(home)
    say(f"{name}: {'running' if running(home / 'site.pid') is not None else 'not running'}")
    both = [x509.load_pem_x509_certificate((home / STARTUP / part).read_bytes()) for part in (AUTHORITY, CERTIFICATE)]
    ends = min(one.not_valid_after_utc for one in both)
    say(f"certificate: good until {ends:%Y-%m-%d}")
    if sentence := Validity(name, ends).warning(now()):
        say(f"{sentence[0].upper()}{sentence[1:]}; ask the coordinator to renew it.")
    mark = read_head(home)
    say(f"audit log: {mark.number:,} records; check them with: promptfed sites audit {home}")
    for line in _used(home):
        say(line)


def _used(home: Path) -> list[str]:
    """Return what a site has given in its life, beside what its owner's terms allow."""
    from promptfed.sites import disclosure, terms
    from promptfed.sites.ledger import Ledger
    from promptfed.sites.spending import delta_for_life

    own = terms.of_site(home)
    said = [
        f"rounds: {_count(home / disclosure.ROUNDS):,}{_of(own.rounds_for_life)}",
        f"test results: {_count(home / disclosure.FILE):,}{_of(own.max_evaluations)}",
    ]
    ledger = Ledger(home)
    if ledger.path.exists():
        delta = delta_for_life(home)
        said.append(f"ε: {ledger.spent(delta):.3g}{_of(own.guards.epsilon_for_life)} at δ={delta:g}")
    return said


def _count(path: Path) -> int:
    return int(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else 0


def _of(most: float) -> str:
    return f" of {most:,g}" if most else ""


def _site_name(home: Path) -> str:
    """Return the name in a site's certificate."""
    from cryptography import x509

    from promptfed.sites.identity import STARTUP
    from promptfed.sites.kits import CERTIFICATE

    path = home / STARTUP / CERTIFICATE
    if not path.is_file():
        raise PromptFedError(f"{home} is not the folder of a site that has joined; name its --home.")
    subject = x509.load_pem_x509_certificate(path.read_bytes()).subject
    return str(subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


def _federation(home: Path) -> "Federation":
    from promptfed.sites.settings import read_federation

    if not (home / "fed.toml").is_file():
        raise PromptFedError(f"{home} is not a federation; make one with: promptfed sites init fed.toml --out {home}")
    return read_federation(home / "fed.toml")


def _when(seconds: Any) -> str:
    return f"{datetime.datetime.fromtimestamp(float(seconds)):%Y-%m-%d %H:%M}"
