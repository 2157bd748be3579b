"""A table of two rows and two columns on images of noise, and the command that runs it."""

from pathlib import Path

import pytest

from promptfed.papers import jobs
from promptfed.papers.jobs import Job, JobResult
from support.command import Done, promptfed
from support.tiny_runs import write_images

TABLE = """
title = "A small table"
paper = "Somebody 2020."
deviations = ["The images are noise."]
notes = ["A note."]

[base]
rounds = 2
clients = 3
data = {{ name = "npz:{images}" }}
partition = {{ name = "iid" }}
backbone = {{ name = "cnn", channels = [2], kernel = 3, hidden = [4] }}
method = {{ epochs = 1, batch = 8 }}

[theirs]
rounds = 4

[tune.all]
"method.lr" = [0.1, 0.001]

[[columns]]
name = "iid"
title = "IID"
clients = ["A", "B", "C"]

[[columns]]
name = "dirichlet"
title = "Dir(1)"
recipe.partition = {{ name = "dirichlet", alpha = 1.0 }}

[[rows]]
name = "fedavg"
title = "FedAvg"
recipe.method = {{ name = "fedavg", lr = 0.05 }}
tune = "all"
paper.iid = {{ clients = [50, 60, 70], mean = 60 }}
paper.dirichlet = 55.5

[[rows]]
name = "local"
title = "Local"
recipe.method = {{ name = "local", lr = 0.1 }}
tune = "all"
"""


def small_table(folder: Path) -> Path:
    """Write the images and the table; return the latter's path."""
    images = write_images(folder / "tiny.npz")
    path = folder / "small.table.toml"
    path.write_text(TABLE.format(images=images), encoding="utf-8")
    return path


def run(table: Path, out: Path, *words: object) -> Done:
    """Give `promptfed reproduce`."""
    return promptfed("reproduce", table, "--out", out, *words)


def folders(out: Path) -> set[str]:
    """Return the folders of finished runs."""
    return {path.parent.relative_to(out).as_posix() for path in out.rglob("summary.json")}


def count_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that the labels of the runs are put into as they are made in this process."""
    made: list[str] = []
    run_job = jobs.run_job

    def counting(job: Job) -> JobResult:
        made.append(job.label)
        return run_job(job)

    monkeypatch.setattr(jobs, "run_job", counting)
    return made


@pytest.fixture(name="table")
def given_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a table of two columns and two rows; the current folder is an empty one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return small_table(tmp_path)


@pytest.fixture(name="counted")
def counted_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the labels of the runs that were really made."""
    return count_runs(monkeypatch)
