"""What README and the pages in docs/results claim is what the committed files say."""

import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from promptfed.papers.plan import cell_recipe
from promptfed.papers.rendering import read_table, to_markdown
from promptfed.papers.reproduce import find_table
from support.scripts import load_script
from support.small_tables import run, small_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
KEPT = ("pfedpt-t", "pfedpg-", "fedapt-", "relic-", "pfedvpt-", "field-")
PAPERS = ("index", "pfedpt", "pfedpg", "fedapt", "relic", "pfedvpt", "field")
NUMBER = re.compile(r"[+-]?\d+\.\d\d+")
OF_FIGURES = {"0.18", "0.19", "0.17", "0.00"}  # from `promptfed figure`, whose commands the pages show
TABLES = sorted(path.name for start in KEPT for path in RESULTS.glob(f"{start}*"))


@pytest.fixture(scope="module")
def results() -> ModuleType:
    return load_script("tools/results.py")


def means(folder: str, kind: str = "ours") -> dict[str, float]:
    """Return every row's mean in the first column of a table, under the paper's setting or the best of its grid."""
    found = read_table(RESULTS / folder)
    rows = [entry for entry in found["rows"] if entry["column"] == found["columns"][0]["name"]]
    pooled = {
        entry["row"]: entry["tuned"]["ours"] if kind == "tuned" and entry["tuned"] else entry["ours"] for entry in rows
    }
    return {row: ours["mean"] for row, ours in pooled.items() if ours["mean"] is not None}


def told(figure: float | None) -> float:
    """Return a figure that the table must have."""
    assert figure is not None
    return figure


def figures(folder: str) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    """Return ours, sample-weighted, and the paper's by column and row."""
    found = read_table(RESULTS / folder)
    ours = {(one["column"], one["row"]): one["ours"]["weighted"] for one in found["rows"]}
    paper = {(one["column"], one["row"]): one["paper"]["mean"] for one in found["rows"] if one["paper"]}
    return {cell: told(value) for cell, value in ours.items()}, {cell: told(value) for cell, value in paper.items()}


def page(name: str) -> str:
    """Return a page of results."""
    return (RESULTS / f"{name}.md").read_text(encoding="utf-8")


def cells(row: str) -> list[str]:
    """Return the cells of a table's row."""
    return [cell.strip() for cell in row.strip("|").split("|")]


def verdicts(name: str) -> list[dict[str, str]]:
    """Return the first table of a page, which must be of claims, row by row."""
    rows = page(name).partition("\n|")[2].partition("\n\n")[0].splitlines()
    names = cells(rows[0])
    assert {"claim", "verdict"} < set(names)
    return [dict(zip(names, cells(row), strict=True)) for row in rows[2:]]


@pytest.mark.parametrize("name", PAPERS)
def test_a_page_holds_every_table_as_printed(results: ModuleType, name: str) -> None:
    assert set(results.PAGES) == set(PAPERS)
    assert results.PAGES[name]()
    for lines in results.PAGES[name]():
        assert "\n".join(lines) in page(name)


@pytest.mark.parametrize("name", PAPERS)
def test_every_claim_has_a_verdict_and_numbers_from_the_tables(results: ModuleType, name: str) -> None:
    pages = PAPERS if name == "index" else (name,)
    printed = {number for one in pages for lines in results.PAGES[one]() for number in NUMBER.findall("\n".join(lines))}
    claims = verdicts(name)
    assert len(claims) > 5
    for one in claims:
        assert one["verdict"].startswith(("holds", "does not hold", "not yet testable here"))
        missing = set(NUMBER.findall(" ".join(one.values()))) - printed
        assert not missing - OF_FIGURES, f"{missing} in {one['claim']!r} is in no table"


def test_the_overview_has_a_verdict_for_every_paper() -> None:
    assert {one["paper"] for one in verdicts("index")} == {"pFedPT", "pFedPG", "FedAPT", "RELIC"}


def kept(folder: str, name: str) -> dict[str, Any]:
    """Return the accuracy and the traffic of a run that is kept as its summary."""
    found = json.loads((RESULTS / folder / f"{name}.json").read_text(encoding="utf-8"))
    return {**found["accuracy"], "bytes": found["traffic"]["down_bytes"] + found["traffic"]["up_bytes"]}


@pytest.mark.parametrize("seed", range(3))
def test_no_seed_reverses_the_demo(seed: int) -> None:
    alone, fedavg, prompts = (kept("demo", f"{name}-seed{seed}") for name in ("alone", "fedavg", "prompts"))
    for kind in ("mean", "worst"):
        assert prompts[kind] >= max(alone[kind], fedavg[kind]) + 0.02
    assert 0 < 100 * prompts["bytes"] < fedavg["bytes"]


def test_no_seed_reverses_the_frames() -> None:
    for seed in range(5):
        assert kept("frames", f"pfedpt-seed{seed}")["mean"] > kept("frames", f"fedavg-seed{seed}")["mean"]


def test_what_came_of_pfedvpt() -> None:
    for column, prompts in (
        ("people", ("own", "shared", "low-rank", "generated", "both")),
        ("office", ("own", "shared")),
    ):
        rows = {one["row"]: one for one in read_table(RESULTS / "pfedvpt-personal")["rows"] if one["column"] == column}
        tuned = {name: one["tuned"]["ours"]["mean"] for name, one in rows.items() if one["tuned"]}
        best = {name: value for name, value in tuned.items() if value is not None}
        assert max(best, key=lambda name: best[name]) == "prior"  # no prompt adds to head and class shares
        assert min(best[name] for name in prompts) > max(best["head-probe"], best["fedavg"], best["fedvpt"])


def test_what_came_of_pfedvpt_with_many_photographs() -> None:
    rows = read_table(RESULTS / "pfedvpt-dermoscopic")["rows"]
    tuned = {one["row"]: one["tuned"]["ours"]["mean"] for one in rows if one["tuned"]}
    found = {row: mean for row, mean in tuned.items() if mean is not None}
    order = sorted(found, key=lambda row: found[row], reverse=True)
    assert order[:5] == ["pfedpg", "singleset-vpt", "fedvpt", "fedrep", "head-probe"]  # heads of their own, all of them
    assert len(order) == 14


def test_what_came_of_the_authors_own_clients() -> None:
    near = {}
    for column in ("dirichlet", "iid", "pathological"):
        rows = read_table(RESULTS / f"pfedpt-t1-authors-{column}")["rows"]
        gaps = {}
        for one in rows:
            ours = one["ours"]
            alike = told(ours["weighted"] if ours["adapted"] else ours["best_weighted"])
            gaps[one["row"]] = abs(alike - told((one["paper"] or {"mean": None})["mean"]))
        near[column] = (sum(gap < 2 for gap in gaps.values()), len(gaps))
        starred = {name for name, gap in gaps.items() if gap >= 2 and name.endswith("-tuned")}
        assert starred == {"fedavg-tuned", "fedprox-tuned", "moon-tuned"}
    assert near == {"dirichlet": (10, 13), "iid": (6, 13), "pathological": (8, 13)}


def test_the_readme_opens_with_the_demo_as_it_came_out() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for method in ("alone", "fedavg", "prompts"):
        found = kept("demo", f"{method}-seed0")
        assert f"| {100 * found['mean']:.2f} | {100 * found['worst']:.2f} |" in readme


def assert_told_by_its_runs(folder: Path) -> None:
    """Assert that every number of a kept table is that of one of its runs."""
    found = read_table(folder)
    assert (folder / "table.md").read_text(encoding="utf-8") == to_markdown(found)
    runs: dict[str, dict[str, Any]] = json.loads((folder / "runs.json").read_text(encoding="utf-8"))
    by_hash = {(one["recipe_hash"], one["seed"]): one for one in runs.values()}
    whole = 1 if found["measures"] == ["fid"] else 100
    shown = 0
    for entry in found["rows"]:
        for ours in [entry["ours"], *([entry["tuned"]["ours"]] if entry["tuned"] else [])]:
            for seed, mean in ours["by_seed"].items():
                one = by_hash[ours["recipe_hashes"][seed], int(seed)]
                known = one["mean"] is not None  # a word of one's own alone has no mean
                assert mean == (pytest.approx(whole * one["mean"], abs=1e-3) if known else None)
                shown += known
    assert shown


@pytest.mark.parametrize("folder", TABLES)
def test_a_table_is_what_its_runs_say(folder: str) -> None:
    assert_told_by_its_runs(RESULTS / folder)


def test_a_table_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(small_table(tmp_path), tmp_path / "out", "--columns", "iid", "--seeds", "0,1").code == 0
    assert load_script("tools/keep_table.py").keep(tmp_path / "out", tmp_path / "kept") == 4
    assert_told_by_its_runs(tmp_path / "kept")


def test_what_came_of_pfedpts_table() -> None:
    ours, paper = figures("pfedpt-t1-cifar10")
    near = [cell for cell, figure in paper.items() if abs(ours[cell] - figure) < 1]
    assert sum(column == "path-cnn" for column, _ in near) == 9
    tuned = ("fedavg-tuned", "fedprox-tuned", "moon-tuned")
    for column in ("path-cnn", "dir-cnn"):
        ahead = [ours[column, row] - ours[column, "pfedpt"] for row in tuned]
        assert min(ahead) > 1.3
        assert max(ahead) < 2.6
        for row in ("fedavg", "fedprox", "moon", "fedper", "fedrep", "fedmtl", "local"):
            assert ours[column, "pfedpt"] > ours[column, row]
    joint = read_table(RESULTS / "pfedpt-t8-cifar10")["rows"]
    assert [one["row"] for one in joint] == ["joint", "pfedpt"] * 3
    pairs = zip(joint[1::2], joint[::2], strict=True)
    assert all(told(one["ours"]["weighted"]) > told(other["ours"]["weighted"]) for one, other in pairs)
    (timing,) = read_table(RESULTS / "pfedpt-t1-cifar10")["sittings"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"table of {len(ours)} runs takes {timing['seconds'] / 60:.0f} minutes" in readme


def test_the_readme_tells_what_came_of_the_authors_own_clients(results: ModuleType) -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    received, adapted = (cells(row) for row in results.near_table()[4:6])
    assert received[-1] == "22 of 24"
    assert adapted[-1] == "2 of 15"
    assert "22 of the 24 cells" in readme


def test_what_came_of_pfedpts_table_on_cifar100() -> None:
    found = read_table(RESULTS / "pfedpt-t1-cifar100")
    ours, _ = figures("pfedpt-t1-cifar100")
    assert len(ours) == 39
    ahead = {column: ours[column, "pfedpt"] - ours[column, "fedavg"] for column in ("path-cnn", "dir-cnn", "iid-cnn")}
    assert ahead == pytest.approx({"path-cnn": 9.7, "dir-cnn": 6.6, "iid-cnn": 0.9}, abs=0.05)
    assert max((row for column, row in ours if column == "path-cnn"), key=lambda row: ours["path-cnn", row]) == "pfedpt"
    above = [ours["dir-cnn", f"{row}-tuned"] - ours["dir-cnn", "pfedpt"] for row in ("fedavg", "fedprox", "moon")]
    assert (min(above), max(above)) == pytest.approx((5.2, 5.9), abs=0.05)
    before = {one["column"]: one["rank_correlation"] for one in read_table(RESULTS / "pfedpt-t1-cifar10")["agreement"]}
    for one in found["agreement"]:
        assert told(one["rank_correlation"]["weighted"]) > told(before[one["column"]]["weighted"])
    (timing,) = found["sittings"]
    took = f"39 runs took **{timing['seconds'] / 60:.1f} minutes**, {timing['runs_per_hour']:.0f} an hour"
    assert took in page("pfedpt")


def test_what_came_of_pfedpts_table_with_the_vit() -> None:
    ours, paper = figures("pfedpt-t1-cifar10-vit")
    assert len(ours) == 15
    columns = ("iid-vit", "dir-vit", "path-vit")
    for found, ahead in ((ours, (-4.0, 23.2, 22.1)), (paper, (-0.5, 21.9, 20.4))):
        above = [found[column, "pfedpt"] - found[column, "fedavg"] for column in columns]
        assert above == pytest.approx(ahead, abs=0.05)
    for found, best in ((ours, (2.5, 3.8)), (paper, (-2.5, -8.2))):
        above = [found[column, "fedavg-tuned"] - found[column, "pfedpt"] for column in columns[1:]]
        assert above == pytest.approx(best, abs=0.055)
    for column in columns:
        personal = [ours[column, row] for row in ("fedavg-tuned", "fedper", "fedbabu", "pfedpt")]
        assert 3.75 < max(personal) - min(personal) < 4.25
        assert abs(ours[column, "fedper"] - paper[column, "fedper"]) < 2
        if column != "iid-vit":
            assert max(personal) == ours[column, "fedavg-tuned"]
    runs = json.loads((RESULTS / "pfedpt-t1-cifar10-vit" / "runs.json").read_text(encoding="utf-8"))
    seconds = [run["seconds"] for run in runs.values()]
    assert 18 <= min(seconds) / 60 < max(seconds) / 60 < 40


def test_what_came_of_the_prompt_as_a_plug_in() -> None:
    ours, paper = figures("pfedpt-t2-cifar10")
    alone, papers = figures("pfedpt-t1-cifar10")
    found = read_table(RESULTS / "pfedpt-t2-cifar10")
    assert set(ours) == {
        *((column, f"{row}-pt") for column in ("c10-dir", "c10-path") for row in ("fedprox", "fedper", "fedrep")),
        *(("c10-dir", "moon-pt"), ("c10-iid", "fedrep-pt")),
    }

    def added(figures: dict[tuple[str, str], float], without: dict[tuple[str, str], float]) -> dict[str, float]:
        return {
            f"{column} {row}": value - without[f"{column.removeprefix('c10-')}-cnn", row.removesuffix("-pt")]
            for (column, row), value in figures.items()
        }

    gains, theirs = added(ours, alone), added(paper, papers)
    whole = ("c10-dir fedprox-pt", "c10-path fedprox-pt", "c10-dir moon-pt")
    assert [gains[cell] for cell in whole] == pytest.approx([21.3, 18.4, 19.7], abs=0.05)
    assert [theirs[cell] for cell in whole] == pytest.approx([18.5, 18.2, 15.3], abs=0.05)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"FedProx gains {gains[whole[1]]:.1f} points from the frame, in print {theirs[whole[1]]:.1f}" in readme
    heads = [cell for cell in gains if cell not in whole]
    assert all(abs(found[cell]) < 1 for found in (gains, theirs) for cell in heads)
    assert min(theirs[cell] for cell in heads) > -1e-6
    assert min(gains[cell] for cell in heads) == pytest.approx(-0.9, abs=0.05)
    first = next(one for one in found["agreement"] if one["column"] == "c10-dir")
    assert told(first["rank_correlation"]["weighted"]) == pytest.approx(0.8)


def test_without_the_prompt_table_2_is_table_1() -> None:
    one, two = (find_table(f"pfedpt/{name}").cells() for name in ("t1-cifar10", "t2-plugin"))
    for column, row in product(("iid", "dir", "path"), ("fedprox", "moon", "fedper", "fedrep")):
        assert cell_recipe(one[f"{column}-cnn/{row}"], []) == cell_recipe(two[f"c10-{column}/{row}"], [])


def test_what_came_of_clients_that_differ_more() -> None:
    ours, paper = figures("pfedpt-t7-cifar10")
    assert len(ours) == 24
    gaps = {cell: ours[cell] - paper[cell] for cell in ours}
    shared = ("fedavg", "fedprox", "moon")
    assert max(abs(gap) for (column, row), gap in gaps.items() if column == "c10-path" and row not in shared) < 2.7
    own = ("fedper", "fedrep", "fedmtl", "fedbabu", "local", "pfedpt")
    easier = [gaps["c10-dir", row] for row in own]
    assert (min(easier), max(easier)) == pytest.approx((2.0, 3.3), abs=0.055)
    for column in ("c10-dir", "c10-path"):
        ahead = {row: value - ours[column, "pfedpt"] for (where, row), value in ours.items() if where == column}
        assert {row for row, gap in ahead.items() if gap > 0} == {f"{row}-tuned" for row in shared}
        assert max(ahead.values()) < 0.5
    found = read_table(RESULTS / "pfedpt-t7-cifar10")
    once = {one["row"]: told(one["difference"]) for one in found["rows"] if one["column"] == "c10-dir"}
    assert all(abs(once[row]) < 0.6 for row in own if row != "fedper")
    (timing,) = found["sittings"]
    took = f"24 runs took {timing['seconds'] / 60:.1f} minutes, {timing['runs_per_hour']:.0f} an hour"
    assert took in page("pfedpt")


def test_what_came_of_pfedpgs_claims() -> None:
    printed, tuned = means("pfedpg-office"), means("pfedpg-office", "tuned")
    assert printed["pfedpg"] > max(printed["fedvpt"], printed["singleset-vpt"])
    assert tuned["pfedpg"] < min(tuned["fedvpt"], tuned["singleset-vpt"])
    assert tuned["pfedpg-adam"] > max(tuned["fedvpt"], tuned["singleset-vpt"], tuned["fedvpt-d"])
    for found in (printed, tuned):
        best = sorted(found, key=found.__getitem__, reverse=True)
        assert best[:2] == ["fedrep", "head-probe"]
    server = list(means("pfedpg-server").values())
    assert server == sorted(server)
    cifar = means("pfedpg-cifar100-0.01")
    assert max(cifar, key=cifar.__getitem__) == "pfedpg-adam"


def test_what_came_of_fedapts_claims() -> None:
    keys = {one["row"]: one["ours"]["per_client"] for one in read_table(RESULTS / "fedapt-shops-t4")["rows"]}
    for shop in range(4):
        column = {row: values[shop] or 0.0 for row, values in keys.items() if row.startswith("e") and row != "eq5"}
        assert max(column, key=column.__getitem__) == f"e{shop}"
    four, one = means("fedapt-shops-t4"), means("fedapt-shops-t1")
    assert four["eq5"] > max(value for row, value in four.items() if row != "eq5")
    assert one["fedapt"] > max(one["clip-zs"], one["promptfl"], one["clip-fc"])
    two = {
        (entry["column"], entry["row"]): entry["ours"]["mean"] or 0.0
        for entry in read_table(RESULTS / "fedapt-shops-t2")["rows"]
    }
    assert all(two[column, "fedapt"] > two[column, "promptfl"] for column in ("b001", "b05", "b5"))
    three = means("fedapt-shops-t3")
    assert three["fedapt"] > three["clip-zs"]
    assert abs(means("fedapt-shops-t5")["with"] - means("fedapt-shops-t5")["without"]) < 0.5
    fast = means("fedapt-shops-fig2")
    assert fast["exact"] == fast["fast"]
    office = means("fedapt-office")
    assert all(value > office["clip-zs"] for row, value in office.items() if row != "clip-zs")
    assert abs(office["fedapt"] - office["promptfl"]) < 0.5
    assert max(office, key=office.__getitem__) == "vit-tuning"


def test_what_came_of_relics_claims() -> None:
    equal, unequal = (
        {
            one["row"]: one["ours"]["mean"]
            for one in read_table(RESULTS / "relic-clematis")["rows"]
            if one["column"] == column
        }
        for column in ("equal", "dirichlet")
    )
    assert (equal["relic"] or 0) > (equal["fedti"] or 0)
    assert (unequal["relic"] or 0) < (unequal["fedti"] or 0)
    slow = means("relic-clematis-0.002")
    assert slow["relic"] < slow["fedti"]
    measured = json.loads((RESULTS / "relic-clematis" / "measured.json").read_text(encoding="utf-8"))
    gaps = {}
    for row in ("fedti", "relic"):
        clients = measured[f"equal/{row}/seed0"]["audit"]["per_client"]
        gaps[row] = sum(one["nearest"] - one["nearest_others"] for one in clients) / len(clients)
    assert gaps == pytest.approx({"fedti": 0.042, "relic": 0.005}, abs=5e-4)


@pytest.mark.parametrize("name", sorted(path.name for path in RESULTS.glob("pfedpt-t*")))
def test_pfedpts_runs_are_those_of_the_tables_with_the_keys_the_page_names(name: str) -> None:
    assert "`partition.draw=seed evaluate.every=10`" in page("pfedpt")
    assert "`partition.balanced=false`" in page("pfedpt")
    found = read_table(RESULTS / name)
    cells_now = find_table(found["table"]).cells()
    for entry in found["rows"]:
        cell = cells_now[f"{entry['column']}/{entry['row']}"]
        older = "authors" not in name and "variants" not in name
        words = ["partition.draw=seed", "evaluate.every=10"] if older else []
        if older and cell.recipe["partition"]["name"] == "pfllib-iid":
            words.append("partition.balanced=false")
        recipe = cell_recipe(cell, words)
        assert {int(seed): replace(recipe, seed=int(seed)).hash for seed in entry["ours"]["recipe_hashes"]} == {
            int(seed): value for seed, value in entry["ours"]["recipe_hashes"].items()
        }


def test_the_readme_tells_the_fields_accuracies(results: ModuleType) -> None:
    rows = results.outcome("field-s5-office")["rows"]
    best = {one["row"]: one["tuned"]["ours"] for one in rows if one["column"] == "camera" and one["tuned"]}
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    named = {"promptfl": "PromptFL", "pfedmoap": "pFedMoAP", "fedapt": "FedAPT"}
    told_so = ", ".join(f"{title} {best[row]['mean']:.2f}" for row, title in named.items())
    shares = best["class-shares"]
    assert f"{told_so}, and {shares['mean']:.2f} for a shared head with class shares" in readme
    assert all(shares["traffic"]["up_floats"] < best[row]["traffic"]["up_floats"] for row in named)
