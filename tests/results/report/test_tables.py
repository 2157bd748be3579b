"""The comparison of runs, with exact small values."""

import ast
import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import promptfed.results.report
from promptfed.core.errors import PromptFedError
from promptfed.results.report import compare, headline, read_run
from promptfed.results.report.layout import to_rich
from promptfed.results.report.table import Table, human_bytes
from support.reports import MakeRun, column


def bold(table: Table, title: str) -> list[bool]:
    """Which cells of one column are best."""
    index = [one.title for one in table.columns].index(title)
    return [row[index].best for row in table.rows]


def edit(path: Path, change: Callable[[Any], None]) -> None:
    """Change a JSON file in place."""
    found = json.loads(path.read_text(encoding="utf-8"))
    change(found)
    path.write_text(json.dumps(found), encoding="utf-8")


def test_one_run_has_every_column_with_its_value(make_run: MakeRun) -> None:
    table = compare([read_run(make_run("a", level=0.8, floats=7680))])
    titles = "method mean worst p10 weighted after deployed best down up seconds"
    assert [one.title for one in table.columns] == titles.split()
    texts = [cell.text for cell in table.rows[0]]
    accuracies = ["79.50", "76.00", "76.00", "79.60", "82.50", "70.00", "79.50 @ 6"]
    assert texts == ["pfedpt", *accuracies, "30.7 kB (7,680 floats)", "30.7 kB (7,680 floats)", "9.0"]
    assert not any(cell.best for cell in table.rows[0])


def test_seeds_are_pooled_with_the_sample_deviation(make_run: MakeRun) -> None:
    runs = [read_run(make_run(f"s{seed}", seed=seed, level=0.8 + 0.02 * seed)) for seed in (2, 0, 1)]
    table = compare(runs)
    assert column(table, "method") == ["pfedpt (n=3)"]
    assert column(table, "mean") == ["81.50 ± 2.00"]
    assert column(table, "best") == ["81.50 ± 2.00 @ 6"]


def test_an_unfinished_seed_is_not_pooled_and_not_best(make_run: MakeRun) -> None:
    runs = [
        read_run(make_run("a", level=0.7)),
        read_run(make_run("b", seed=1, level=0.95, done=4)),
        read_run(make_run("c", method="fedavg", level=0.6)),
    ]
    table = compare(runs)
    assert column(table, "method") == ["pfedpt", "pfedpt (unfinished)", "fedavg"]
    assert bold(table, "mean") == [True, False, False]
    assert column(table, "after")[1] == "–"


def test_the_best_is_bold_and_less_traffic_is_better(make_run: MakeRun) -> None:
    table = compare(
        [read_run(make_run("a", floats=100)), read_run(make_run("b", method="fedavg", level=0.7, floats=9))]
    )
    assert bold(table, "mean") == [True, False]
    assert bold(table, "down") == [False, True]
    assert bold(table, "seconds") == [False, False], "a tie of all has no winner"


def test_settings_appear_when_they_differ_and_each_has_its_own_best(make_run: MakeRun) -> None:
    runs = [
        read_run(make_run("a", level=0.8)),
        read_run(make_run("b", method="fedavg", level=0.7)),
        read_run(make_run("c", level=0.5, dataset="office", clients=6)),
        read_run(make_run("d", method="fedavg", level=0.4, dataset="office", clients=6)),
    ]
    table = compare(runs)
    assert [one.title for one in table.columns][:3] == ["method", "data set", "clients"]
    assert column(table, "data set") == ["fashion-shops", "fashion-shops", "office", "office"]
    assert bold(table, "mean") == [True, False, True, False]


def test_headline_counts_the_whole_run(make_run: MakeRun) -> None:
    table = headline([read_run(make_run("a", floats=100, rounds=6))])
    assert [one.title for one in table.columns] == ["method", "mean", "worst client", "traffic"]
    # Two of four clients in each of six rounds, 400 bytes each way.
    assert [cell.text for cell in table.rows[0]] == ["pfedpt", "79.50", "76.00", "9.6 kB"]


def test_markdown_is_a_table_with_a_legend(make_run: MakeRun) -> None:
    runs = [read_run(make_run("a")), read_run(make_run("b", method="a|b", level=0.7))]
    lines = headline(runs).to_markdown().splitlines()
    assert lines[:2] == ["| method | mean | worst client | traffic |", "|---|---:|---:|---:|"]
    assert lines[2] == "| pfedpt | **79.50** | **76.00** | 737 kB |"
    assert lines[3] == "| a\\|b | 69.50 | 66.00 | 737 kB |"
    assert lines[5].startswith("mean: accuracy in percent")
    assert lines[5].endswith("Bold: best of its column.")


def test_latex_is_booktabs_and_escaped(make_run: MakeRun) -> None:
    runs = [read_run(make_run(f"s{seed}", seed=seed, method="p_50%")) for seed in (0, 1)]
    text = headline(runs).to_latex()
    assert r"\begin{tabular}{lrrr}" in text
    assert r"\toprule" in text
    assert r"\bottomrule" in text
    assert r"p\_50\% (n=2) & 79.50 $\pm$ 0.00 & 76.00 $\pm$ 0.00 & 737 kB \\" in text


def test_csv_holds_plain_numbers(make_run: MakeRun) -> None:
    runs = [read_run(make_run(f"s{seed}", seed=seed, level=0.8 + 0.02 * seed, floats=10)) for seed in (0, 1)]
    (row,) = csv.DictReader(io.StringIO(compare(runs).to_csv()))
    assert (row["method"], row["seeds"], row["mean"], row["mean_std"]) == ("pfedpt", "2", "80.50", "1.41")
    assert (row["down_bytes"], row["up_floats"], row["best_round"], row["seconds"]) == ("40", "10", "6", "9.0")


def test_rich_shows_the_same_texts(make_run: MakeRun) -> None:
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(to_rich(headline([read_run(make_run("a", method="[red]x"))])))
    shown = console.export_text()
    assert "79.50" in shown
    assert "[red]x" in shown


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (30720, "30.7 kB"), (999_600, "1 MB"), (2e15, "2,000 TB")],
)
def test_human_bytes(size: float, text: str) -> None:
    assert human_bytes(size) == text


@settings(deadline=None)
@given(st.integers(0, 10**14))
def test_human_bytes_keeps_three_digits(size: int) -> None:
    number, unit = human_bytes(size).split()
    factor = 1000 ** ("B", "kB", "MB", "GB", "TB").index(unit)
    assert float(number) * factor == pytest.approx(size, rel=0.006, abs=0.5)


def test_a_torn_last_line_is_ignored(make_run: MakeRun) -> None:
    folder = make_run("a", done=3)
    with (folder / "rounds.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"round": 4, "clie')
    assert [one.number for one in read_run(folder).rounds] == [1, 2, 3]


def test_an_unfinished_run_is_read_from_its_rounds(make_run: MakeRun) -> None:
    run = read_run(make_run("a", done=3, seed=7, floats=10))
    assert (run.finished, run.method, run.seed, run.clients, run.planned_rounds) == (False, "pfedpt", 7, 4, 6)
    assert run.scores == run.rounds[1].received, "round 3 was not an evaluation round"
    assert (run.best_round, run.traffic.down_bytes, run.down_bytes, run.seconds) == (2, 240, 40.0, 4.5)


def test_a_client_without_test_images_and_a_diverged_loss_are_read(make_run: MakeRun) -> None:
    folder = make_run("a")
    edit(folder / "summary.json", lambda found: found["accuracy"]["per_client"].__setitem__(1, None))
    lines = (folder / "rounds.jsonl").read_text(encoding="utf-8").replace('"loss": 2.0,', '"loss": NaN,')
    (folder / "rounds.jsonl").write_text(lines, encoding="utf-8")
    run = read_run(folder)
    assert run.scores is not None
    assert run.scores.per_client[1] is None
    assert run.rounds[0].loss is None


def damage(folder: Path, name: str, text: str | None) -> None:
    """Overwrite a file, or remove it."""
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("recipe.toml", None, "is not a run folder, since it has no recipe.toml"),
        ("recipe.toml", "seed = ", "is not valid TOML"),
        ("rounds.jsonl", None, "has no finished round yet"),
        ("rounds.jsonl", "", "has no finished round yet"),
        ("rounds.jsonl", '{"torn\n{"round": 2}\n', "line 1 is not valid JSON"),
        ("rounds.jsonl", '{"round": 1}\n', "line 1, is not a round: it has no 'clients'"),
        ("summary.json", "{}", "is not a summary: it has no 'accuracy'"),
        ("summary.json", "[]", "must hold one JSON object"),
        ("partition.json", '{"clients": [{}]}', "is not a partition: it has no 'counts'"),
        ("env.json", "{", "is not valid JSON"),
    ],
)
def test_a_damaged_folder_is_explained(make_run: MakeRun, name: str, text: str | None, sentence: str) -> None:
    folder = make_run("a")
    damage(folder, name, text)
    with pytest.raises(PromptFedError) as caught:
        read_run(folder)
    assert sentence in str(caught.value)


def test_the_report_imports_neither_torch_nor_the_rest_of_the_package() -> None:
    allowed = (
        "promptfed.core.errors",
        "promptfed.core.files",
        "promptfed.core.progress",
        "promptfed.core.statistics",
        "promptfed.results",
        "rich",
        "jinja2",
        "markupsafe",
    )
    for path in Path(promptfed.results.report.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.startswith(allowed) or name.split(".")[0] in sys.stdlib_module_names, (
                    f"{path.name} imports {name}"
                )


def drawn(table: Table, width: int) -> list[str]:
    """What a terminal of that width shows, line by line."""
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(to_rich(table, width))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    return lines


def cells(line: str) -> list[str]:
    """The texts between the rules of one line."""
    return [text.strip() for text in line.replace("┃", "│").split("│")[1:-1]]


def heads(lines: list[str]) -> list[list[str]]:
    """The headings of all tables, of each its last line."""
    return [cells(lines[index - 1]) for index, line in enumerate(lines) if line.startswith("┡")]


def test_a_table_too_wide_for_the_terminal_stands_upright(make_run: MakeRun) -> None:
    table = compare([read_run(make_run("one", method="fedavg")), read_run(make_run("two", method="pfedpt"))])
    titles = [one.title for one in table.columns]
    assert heads(drawn(table, 200)) == [titles]
    narrow = drawn(table, 80)
    assert heads(narrow) == [["method", "fedavg", "pfedpt"]]
    assert [cells(line)[0] for line in narrow if line.startswith("│")] == titles[1:]


def test_what_the_columns_mean_is_as_wide_as_the_terminal(make_run: MakeRun) -> None:
    lines = drawn(compare([read_run(make_run("one", method="fedavg"))]), 80)
    bottom = next(index for index, line in enumerate(lines) if line.startswith("└"))
    assert len(lines[bottom]) < 40
    assert all(len(line) > 60 for line in lines[bottom + 1 : -1])


def test_only_names_are_folded_in_an_upright_table(make_run: MakeRun) -> None:
    table = compare([read_run(make_run("one", method="a long name " * 3)), read_run(make_run("two", method="b"))])
    # "weighted" (8), twice "30.7 kB (7,680 floats)" (22), three for each column's rule and spaces, and the last rule
    lines = drawn(table, 8 + 2 * 22 + 3 * 3 + 1)
    assert len(heads(lines)) == 1
    assert ["", "a long name a long", ""] in map(cells, lines[:4])
    assert ["down", "30.7 kB (7,680 floats)", "30.7 kB (7,680 floats)"] in map(cells, lines)
    assert len(heads(drawn(table, 8 + 2 * 22 + 3 * 3))) > 1, "one character less, and it does not fit"


@pytest.mark.parametrize("width", [50, 80, 120])
def test_many_runs_are_split_into_tables_below_each_other(make_run: MakeRun, width: int) -> None:
    runs = [
        read_run(make_run(f"{i}-{seed}", method=f"method-{i}", seed=seed, level=0.5 + 0.02 * i + 0.01 * seed))
        for i in range(13)
        for seed in (0, 1)
    ]
    table = compare(runs)
    lines = drawn(table, width)
    parts = heads(lines)
    assert len(parts) > 1
    assert all(part[0] == "method" for part in parts)
    assert [title for part in parts for title in part[1:]] == [one.title for one in table.columns[1:]]
    shown = [cells(line) for line in lines if line.startswith("│")]
    for number, row in enumerate(table.rows):
        again = [part for each in range(len(parts)) for part in shown[13 * each + number][1:]]
        assert again == [cell.text for cell in row[1:]]
        assert {shown[13 * each + number][0] for each in range(len(parts))} == {row[0].text}
    assert " ".join(line.strip() for line in lines).count("Bold: best of its column.") == 1


def test_parts_of_a_table_name_their_rows_in_full(make_run: MakeRun) -> None:
    runs = [read_run(make_run(f"{d}{i}", method=f"m{i}", dataset=d)) for d in ("shops", "office") for i in range(4)]
    runs.append(read_run(make_run("more", method="m0", dataset="shops", clients=12)))
    lines = drawn(compare(runs), 90)
    assert {part[0] for part in heads(lines)} == {"method, data set, clients"}
    assert sum(cells(line)[0] == "m3, office, 4 clients" for line in lines if line.startswith("│")) == len(heads(lines))


def test_one_run_stays_whole_in_the_narrowest_terminal(make_run: MakeRun) -> None:
    table = compare([read_run(make_run("a", floats=582_026))])
    assert ["down", "2.33 MB (582,026 floats)"] in map(cells, drawn(table, 40))
    lines = drawn(table, 24)
    assert len(heads(lines)) == 1
    down = next(index for index, line in enumerate(lines) if cells(line)[:1] == ["down"])
    assert "".join(cells(line)[1] for line in lines[down : down + 3]).replace(" ", "") == "2.33MB(582,026floats)"


# -- adapted models and newcomers -----------------------------------------------------------------------------------


def test_a_method_that_adapts_shows_what_it_received(make_run: MakeRun) -> None:
    adapting, other = make_run("a", method="pfedpg", level=0.2, adapted=0.9), make_run("b", method="fedavg", level=0.7)
    table = compare([read_run(adapting), read_run(other)])
    assert [one.title for one in table.columns][:4] == ["method", "mean", "before", "worst"]
    assert column(table, "mean") == ["89.50", "69.50"]
    assert column(table, "before") == ["19.50", "69.50"]
    assert column(table, "best") == ["19.50 @ 6", "69.50 @ 6"]
    assert bold(table, "mean") == [True, False]
    assert bold(table, "before") == [False, True]
    assert bold(table, "best") == [False, False], "fedavg would seem to be the better one"
    assert "after the method's own adaptation if it has one (so are worst, p10 and weighted)" in table.legend
    assert "before: mean as received" in table.legend
    assert "best: best mean as received of any round" in table.legend
    assert "after the method's own adaptation if it has one;" in headline([read_run(adapting)]).legend


def test_where_nothing_adapts_there_is_no_before_and_a_best(make_run: MakeRun) -> None:
    table = compare([read_run(make_run("a", level=0.8)), read_run(make_run("b", method="fedavg", level=0.7))])
    assert not {"before", "newcomers"} & {one.title for one in table.columns}
    assert bold(table, "best") == [True, False]


def test_an_unfinished_run_is_not_said_to_be_adapted(make_run: MakeRun) -> None:
    table = compare([read_run(make_run("a", adapted=0.9, done=4)), read_run(make_run("b", method="b", adapted=0.9))])
    assert column(table, "mean")[0] == column(table, "before")[0]
    assert table.legend.startswith("method: unfinished runs as received, so far; mean:")


def test_a_summary_without_before_is_read(make_run: MakeRun) -> None:
    folder = make_run("a")
    edit(folder / "summary.json", lambda found: found["accuracy"].pop("before"))
    run = read_run(folder)
    assert (run.before, run.adapts) == (None, False)


def test_newcomers_have_a_column_and_founders_a_mean(make_run: MakeRun) -> None:
    late = make_run("a", clients=6, newcomers=2, join_rounds=4)
    # clients 0 … 3 have 76, 80, 84, 78; 4 and 5 would have 82 and 76, and are ten points lower
    run = read_run(late)
    assert run.newcomers == pytest.approx(0.69)
    assert run.founders == pytest.approx(0.795)
    assert run.joined == 7
    table = compare([run, read_run(make_run("b", method="fedavg", clients=6))])
    assert column(table, "newcomers") == ["69.00", "–"]
    assert read_run(make_run("c")).joined is None


def test_an_unfinished_run_with_newcomers_compares_rounds_of_the_same_clients(make_run: MakeRun) -> None:
    changes = {"clients": 6, "newcomers": 2, "join_rounds": 4}
    run = read_run(make_run("a", **changes, done=9))
    assert run.scores is not None
    assert (run.best_round, run.best_mean) == (8, run.scores.mean), "round 6 had a higher mean, of four clients"
    assert (run.planned_rounds, run.joined, run.newcomers) == (10, 7, None)
    assert read_run(make_run("b", **changes, done=5)).joined is None
