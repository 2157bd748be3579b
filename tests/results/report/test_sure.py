"""How sure, and for whom: the intervals, the classes and the confidence in the report."""

import json
import re
from pathlib import Path

import numpy as np

from promptfed.cli.analysis import Accuracy
from promptfed.results.folder import names
from promptfed.results.folder.predictions import Predictions
from promptfed.results.metrics.measures import measure
from promptfed.results.report import across, read_run, write_report
from promptfed.results.report.class_plots import confusion_chart
from promptfed.results.report.tables import ACCURACIES
from support.pages import read
from support.reports import MakeRun, column


def answers(clients: int = 4, images: int = 30, classes: int = 10, seed: int = 0) -> Predictions:
    rng = np.random.default_rng(seed)
    label = rng.integers(0, classes, clients * images)
    logits = rng.normal(size=(len(label), classes)) + 2 * np.eye(classes)[label]
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    whose = np.repeat(np.arange(clients), images)
    return Predictions(clients, classes, whose, np.arange(len(label)), label, shares.argmax(1), shares.max(1), shares)


def with_metrics(folder: Path, found: Predictions, headline: str = "accuracy") -> Path:
    path = folder / names.SUMMARY
    summary = json.loads(path.read_text())
    path.write_text(json.dumps(summary | {"metrics": measure(found, 0, headline)}))
    return folder


def test_a_run_shows_its_intervals_and_classes(make_run: MakeRun) -> None:
    folder = with_metrics(make_run("a"), answers())
    found = read_run(folder).metrics
    assert found is not None
    page = read(write_report([folder]))
    assert page.sections[page.sections.index("clients") + 1 :][:2] == ["sure", "classes"]
    scores = found.scores["macro_f1"]
    assert scores.pooled is not None
    assert scores.pooled_interval is not None
    low, high = scores.pooled_interval
    assert f"macro-F1 {100 * scores.pooled:.2f} {100 * low:.1f}–{100 * high:.1f}" in page.text
    assert f"client {scores.worst_client}" in page.text
    assert "the middle 95 % of 1,000 resamples" in page.text
    text = (folder / names.REPORT).read_text()
    filled = sum(np.count_nonzero(counts) for counts in (found.confusion, found.worst_confusion) if counts)
    assert text.count("answered as") == filled
    assert "Mean accuracy" in page.text  # the default headline
    assert "Balanced accuracy and macro-F1" in page.text


def test_another_headline_leads(make_run: MakeRun) -> None:
    one = with_metrics(make_run("a"), answers(), "balanced_accuracy")
    found = read_run(one).metrics
    assert found is not None
    scores = found.scores["balanced_accuracy"]
    page = read(write_report([one]))
    assert f"Mean balanced accuracy {100 * (scores.mean or 0):.2f} %" in page.text
    assert f"client {scores.worst_client};" in page.text
    assert page.text.index("balanced accuracy") < page.text.index("macro-F1")
    other = with_metrics(make_run("b", method="fedavg"), answers(seed=1), "balanced_accuracy")
    both = [read_run(folder).metrics for folder in (one, other)]
    best = max((run.scores["balanced_accuracy"].mean or 0 for run in both if run), default=0)
    assert f"{100 * best:.2f} % best of all" in read(write_report([one, other])).text


def test_of_calibration_errors_the_lowest_is_best(make_run: MakeRun) -> None:
    folders = [with_metrics(make_run(n, method=n), answers(seed=s), "ece") for s, n in enumerate(("fedavg", "local"))]
    runs = [read_run(folder) for folder in folders]
    values = [run.metrics.scores["ece"].mean or 0 for run in runs if run.metrics]
    table = across(runs, "ece")
    assert [cell.best for cell in (row[1] for row in table.rows)] == [value == min(values) for value in values]
    page = read(write_report(folders))
    assert (
        f"Mean ECE {100 * min(values):.2f} % best of all: {('fedavg', 'local')[values.index(min(values))]}" in page.text
    )


def test_a_run_without_measures_has_no_such_section(make_run: MakeRun) -> None:
    page = read(write_report([make_run("a")]))
    assert not {"sure", "classes"} & set(page.sections)
    assert "macro-F1" not in page.text


def test_over_sites_a_sentence_says_why_not(make_run: MakeRun) -> None:
    folder = make_run("a")
    (folder / names.FEDERATION).write_text("{}")
    page = read(write_report([folder]))
    assert "sure" in page.sections
    assert "those answers stay at the sites" in page.text


def test_many_methods_share_one_table_and_one_plot(make_run: MakeRun) -> None:
    folders = [with_metrics(make_run(f"m{k}", method=f"m{k}"), answers(seed=k)) for k in range(7)]
    page = write_report(folders).read_text()
    assert "answered as" not in page
    assert "macro-F1</td>" not in page
    assert page.count('aria-label="Confidence against accuracy"') == 1


def test_a_hundred_classes_and_many_clients_stay_small(make_run: MakeRun) -> None:
    folder = make_run("a", clients=300)
    plain = write_report([folder]).stat().st_size
    found = answers(clients=300, images=10, classes=100)
    path = folder / names.PARTITION
    held = json.loads(path.read_text())
    for client in held["clients"]:
        client["counts"] = [*client["counts"], *[0] * 90]
    path.write_text(json.dumps(held | {"classes": [f"class number {k}" for k in range(100)]}))
    page = write_report([with_metrics(folder, found)])
    assert page.stat().st_size - plain < 600_000
    text = page.read_text()
    assert "Of 100 classes, the 40 with the lowest recall" in text
    assert "answered as" not in text


def test_a_confusion_matrix_of_few_classes_has_numbers() -> None:
    drawn = confusion_chart(["cat", "dog"], [[3, 1], [0, 2]], width=460, title="All")
    assert re.findall(r'in-cell"[^>]*>(\d+)<', drawn) == ["3", "1", "2"]
    assert "cat answered as dog: 1 of 4" in drawn
    assert 'fill-opacity="0.75"' in drawn
    assert "2 classes; 5 of 6 answers are right" in drawn


def test_a_confusion_matrix_of_many_classes_is_a_heat_map() -> None:
    classes = [f"c{k}" for k in range(100)]
    drawn = confusion_chart(classes, (2 * np.eye(100, dtype=int)).tolist(), width=460, title="All")
    assert drawn.count("<path") == 1
    assert drawn.count("M") == 100
    assert "in-cell" not in drawn


def test_a_table_of_any_measure(make_run: MakeRun) -> None:
    run = read_run(with_metrics(make_run("a"), answers()))
    assert run.metrics is not None
    for name, value in (
        ("balanced_accuracy", run.metrics.scores["balanced_accuracy"].mean),
        ("worst_auroc", run.metrics.scores["auroc"].worst),
        ("pooled_macro_f1", run.metrics.scores["macro_f1"].pooled),
    ):
        table = across([run], name)
        assert column(table, name) == [f"{100 * (value or 0):.2f}"]
        assert table.legend.startswith(f"{name}: ")
        assert "accuracy in percent" not in table.legend


def test_the_command_line_knows_every_measure() -> None:
    assert [one.value for one in Accuracy] == list(ACCURACIES)
