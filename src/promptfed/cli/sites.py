"""`promptfed sites`: a federation of real machines, from its kits to its runs."""

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptfed.cli.arguments import Overrides
from promptfed.cli.site_health import doctor, health
from promptfed.cli.terminal import say
from promptfed.cli.trust import current_kit, show_marks, show_site, warn_of_certificates
from promptfed.core.errors import PromptFedError
from promptfed.results.folder import names

if TYPE_CHECKING:
    from promptfed.runs.config import Recipe

app = typer.Typer(help="Real sites: make kits, start the coordinator, join as a site, run.", no_args_is_help=True)

Home = Annotated[Path, typer.Option("--federation", help="The folder that `sites init` made.", metavar="DIR")]
HERE = Path("federation")


@app.command()
def init(
    fed: Annotated[Path, typer.Argument(help="fed.toml, which lists the sites.", metavar="FED.TOML")],
    out: Annotated[Path, typer.Option(help="The folder to create for the federation.")] = HERE,
) -> None:
    """Make a kit for every site: its key, its certificate, and the coordinator's address."""
    from promptfed.sites.provisioning import provision

    federation = provision(fed, out)
    for site in federation.sites:
        say(f"Kit for {site}: {out / 'kits' / site}.zip")
    say("Send each site its kit over a secure channel: it contains the site's private key.")
    say(f"Next: promptfed sites start --federation {out}")


@app.command()
def start(home: Home = HERE) -> None:
    """Run the coordinator's server until Ctrl-C; restart it if it dies."""
    from promptfed.sites import certificates
    from promptfed.sites import flare_workspace as flare
    from promptfed.sites.settings import read_federation
    from promptfed.sites.watchdog import Party, keep_running

    flare.require_flare()
    federation = read_federation(_folder(home) / "fed.toml")
    certificates.require_valid(home, federation)
    kit, state = home / "kits" / "coordinator", home.resolve() / "state"
    state.mkdir(exist_ok=True)
    server = Party(
        command=tuple(flare.parent_command(kit, None)),
        workspace=kit,
        log=home / "server.log",
        pid_file=home / "server.pid",
        environment=flare.parent_environment(),
        ports=(federation.port, federation.admin_port),
        more_logs=(kit / flare.ENGINE_LOG,),
    )
    say(f"Starting the server; its log is {server.log}. Press Ctrl-C to stop it.")
    limits = (federation.sites, federation.answer_bytes)
    keep_running(server, say, begin=lambda: flare.build_server_workspace(kit, state, *limits))
    say("The server has stopped.")


@app.command()
def join(
    kit: Annotated[Path, typer.Argument(help="The kit that the coordinator sent: a zip file or a folder.")],
    data: Annotated[str, typer.Option(help="A folder of images, a .csv or .npz file, or the name of a data set.")],
    terms: Annotated[
        Path | None,
        typer.Option(help="A TOML file with the terms you agree to; other recipes are refused.", metavar="FILE"),
    ] = None,
    home: Annotated[
        Path | None, typer.Option(help="The folder for the site's state; the default is KIT/state.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    renew: Annotated[
        Path | None, typer.Option(help="A new certificate that the coordinator sent; the kit stays.", metavar="FILE")
    ] = None,
) -> None:
    """Take part as a site until Ctrl-C. Images and personal state stay here; `sites audit` shows what has left."""
    from promptfed.runs.config import check_device, resolve
    from promptfed.sites import flare_workspace as flare
    from promptfed.sites import worker_command as worker
    from promptfed.sites.client_run import own_data
    from promptfed.sites.identity import load_identity
    from promptfed.sites.kits import default_home, read_kit, take_renewal
    from promptfed.sites.terms import read_terms
    from promptfed.sites.watchdog import Party, keep_running

    flare.require_flare()
    check_device(device)
    if terms is not None:
        read_terms(terms)
    own, found = read_kit(kit), own_data(data, resolve({}))
    state = (home or default_home(kit, own)).resolve()
    if renew is None:
        own = current_kit(kit, own, state)
    state.mkdir(parents=True, exist_ok=True)
    state.chmod(0o700)  # keys, personal trees and models are in it
    if renew is not None:
        own = take_renewal(renew, own, state)
    given = {worker.DATA: _absolute(data), worker.HOME: str(state), worker.DEVICE: device}
    site = Party(
        command=tuple(flare.parent_command(state / "engine", own.site)),
        workspace=state / "engine",
        log=state / "site.log",
        pid_file=state / "site.pid",
        environment=flare.parent_environment(**given),
        more_logs=(state / "worker.log", state / "engine" / flare.ENGINE_LOG),
    )

    def begin() -> None:
        _take_terms(terms, state)
        flare.build_site_workspace(own, site.workspace)
        images = f"{len(found):,} images of {len(found.classes)} classes"
        say(f"{own.site}: {images}; its log is {site.log}. Press Ctrl-C to leave.")
        say(f"Other sites know this one by the key {load_identity(state, own.site).key}")

    keep_running(site, say, begin)
    say("This site has left the federation.")


def _take_terms(terms: Path | None, state: Path) -> None:
    """Put the owner's terms into force; those of an earlier join stay in force if none are given."""
    from promptfed.core.files import write_text
    from promptfed.sites.terms import FILE, read_terms

    if terms is not None:
        write_text(state / FILE, terms.read_text(encoding="utf-8"))
    if (state / FILE).exists():
        read_terms(state / FILE)
        say(f"Recipes that violate {state / FILE} will be refused.")


def _absolute(data: str) -> str:
    """Return a path that means the same from any folder; a data set's name stays."""
    kind, colon, path = data.partition(":")
    if colon:
        return f"{kind}:{Path(path).expanduser().resolve()}"
    return str(Path(data).expanduser().resolve()) if Path(data).expanduser().exists() else data


@app.command()
def run(
    source: Annotated[
        str | None, typer.Argument(help="A recipe file, a shipped recipe, or a method.", metavar="RECIPE|METHOD")
    ] = None,
    overrides: Overrides = None,
    home: Home = HERE,
    out: Annotated[Path | None, typer.Option(help="The run folder; the default is DIR/runs/METHOD-N.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume the run in this folder.", metavar="DIR")] = None,
    wait: Annotated[float, typer.Option(help="How long to wait for a silent server, in seconds.", min=1)] = 300.0,
) -> None:
    """Train a method over the sites; after any crash, resume from the last finished round.

    The sites and their data replace the recipe's clients, partition and data set.
    """
    from promptfed.results.folder.record import over_sites
    from promptfed.sites import coordinator
    from promptfed.sites.admin_session import ServerSilent
    from promptfed.sites.flare_workspace import require_flare
    from promptfed.sites.settings import read_federation
    from promptfed.sites.supervisor import Supervisor

    require_flare()
    federation = read_federation(_folder(home) / "fed.toml")
    if resume is None:
        if source is None:
            raise PromptFedError("Nothing to run: name a recipe or a method, for example promptfed sites run pfedpg.")
        recipe = _recipe(source, overrides or [], len(federation.sites))
        resume = out or _free(home / "runs", str(recipe.method["name"]))
        coordinator.create(resume, recipe, federation)
    elif source is not None:
        raise PromptFedError("A resumed run keeps its recipe; leave out the recipe.")
    elif not over_sites(resume):
        raise PromptFedError(f"{resume} is not a run over sites.")
    try:
        summary = Supervisor(home, resume, say, lambda line: say(describe_round(line, federation.sites)), wait).run()
    except ServerSilent as error:
        raise PromptFedError(f"{error} Continue with: promptfed sites run --resume {resume}") from error
    except KeyboardInterrupt:
        say(f"The run continues in the background; watch it with: promptfed sites run --resume {resume}")
        raise typer.Exit(130) from None
    say(f"{_accuracy(summary['accuracy'])}; run folder {resume}.")


def _accuracy(scores: dict[str, Any]) -> str:
    """Return a finished run's accuracy in words; rounds report the models as received."""
    mean, before = scores["mean"], (scores.get("before") or scores)["mean"]
    if mean is None:
        return "Accuracy unknown"
    adapted = f" after the method's own adaptation, {100 * before:.1f} % as received" if before != mean else ""
    return f"Accuracy {100 * mean:.1f} %{adapted}"


def _recipe(source: str, words: list[str], sites: int) -> "Recipe":
    from promptfed.runs import config

    given = [word for word in words if word.startswith("clients=")]
    if given:
        raise PromptFedError(f"{given[0]} cannot be set: the clients are the {sites} sites.")
    return config.load_one(source, [*words, f"clients={sites}"], embedded=False)


def describe_round(line: dict[str, Any], sites: tuple[str, ...]) -> str:
    """Return a finished round as one line: accuracy, participants, problems, traffic, time."""
    mean = line["received"] and line["received"]["mean"]
    parts = [f"round {line['round']}", "" if mean is None else f"accuracy {100 * mean:.1f} %"]
    parts.append(f"{len(line['clients'])} of {len(sites)} sites")
    parts += [f"{site}: {reason}" for site, reason in line["sites"]["silent"].items()]
    parts += [f"{site} refused: {reasons[-1]}" for site, reasons in line["sites"]["refused"].items()]
    parts += [f"{site}: {count} late" for site, count in line["sites"]["late"].items()]
    traffic = line["traffic"]["down_bytes"] + line["traffic"]["up_bytes"]
    return " · ".join([part for part in parts if part] + [f"{traffic / 1000:,.0f} kB", f"{line['seconds']:.1f} s"])


def _free(parent: Path, stem: str) -> Path:
    name = stem.replace("/", "_").replace(":", "_")
    return next(folder for number in range(1, 10**6) if not (folder := parent / f"{name}-{number}").exists())


@app.command()
def status(
    home: Home = HERE,
    own: Annotated[Path | None, typer.Option("--home", help="Show this site instead.", metavar="DIR")] = None,
) -> None:
    """Show whether the server is up, which sites are connected, and every run; or, at a site, how that is."""
    from promptfed.sites.admin_session import connected
    from promptfed.sites.pid_file import running
    from promptfed.sites.settings import read_federation

    if own is not None:
        show_site(own)
        return
    federation = read_federation(_folder(home) / "fed.toml")
    up = running(home / "server.pid") is not None
    say(f"server: {'up' if up else 'down'}")
    there = connected(home) if up else None
    for site in federation.sites:
        state = "unknown" if there is None else "connected" if site in there else "away"
        say(f"{site}: {state}")
    warn_of_certificates(home, federation)
    show_marks(home)
    for folder in sorted((home / "runs").glob(f"*/{names.RECIPE}")):
        rounds = folder.parent / names.ROUNDS
        count = len(rounds.read_text(encoding="utf-8").splitlines()) if rounds.exists() else 0
        say(f"{folder.parent}: {count} rounds, {_state(folder.parent)}")
        for site, declared in _declared(folder.parent).items():
            say(f"  {site} declared {declared['train']:,} training and {declared['test']:,} test images")


def _declared(folder: Path) -> dict[str, dict[str, int]]:
    """Return how many images each site of a run declared."""
    found: dict[str, dict[str, int]] = {}
    for path in (folder / names.SITES, folder / names.NEWCOMERS):
        if path.exists():
            found |= json.loads(path.read_text(encoding="utf-8"))["sites"]
    return found


def _state(folder: Path) -> str:
    """Return what a run is doing, or why it stopped."""
    from promptfed.sites.pid_file import running

    if (folder / names.SUMMARY).exists():
        return "finished"
    if running(folder / names.LOCK) is not None:
        return "at work"
    if running(folder / names.WINDOW) is not None:
        return "waiting for its next job"
    path = next((path for path in (folder / names.FAILED, folder / names.FAILED_SHOWN) if path.exists()), None)
    return "stopped" if path is None else f"stopped: {json.loads(path.read_text(encoding='utf-8'))['reason']}"


@app.command()
def stop(home: Home = HERE) -> None:
    """Stop the coordinator's server and its job; runs can be resumed."""
    from promptfed.sites.pid_file import running

    process = running(_folder(home) / "server.pid")
    if process is None:
        say("The server is not running.")
        return
    os.kill(process, signal.SIGTERM)
    while running(home / "server.pid") is not None:
        time.sleep(0.1)
    say("The server has stopped.")


def _folder(home: Path) -> Path:
    if not (home / "fed.toml").is_file():
        raise PromptFedError(f"{home} is not a federation; make one with: promptfed sites init fed.toml --out {home}")
    return home


app.command()(doctor)
app.command()(health)
