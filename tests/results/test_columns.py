"""Tables by columns, with pandas and without."""

import sys

import pandas
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.results.columns import Columns

TABLE = Columns.from_records([{"round": 1, "mean": 0.5}, {"round": 2, "mean": None, "more": "x"}], ["round", "loss"])


def test_records_become_columns_and_records_again() -> None:
    assert dict(TABLE) == {"round": [1, 2], "loss": [None, None], "mean": [0.5, None], "more": [None, "x"]}
    assert TABLE.rows == 2
    assert TABLE.records()[1] == {"round": 2, "loss": None, "mean": None, "more": "x"}


def test_pandas_takes_the_columns_and_the_records() -> None:
    frame = TABLE.to_pandas()
    assert frame["mean"].tolist()[0] == 0.5
    assert frame["mean"].isna().tolist() == [False, True]
    assert frame.equals(pandas.DataFrame(TABLE))
    assert pandas.DataFrame(TABLE.records())["round"].tolist() == [1, 2]


def test_without_pandas_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(PromptFedError, match=r"^Data frames need pandas: pip install pandas\.$"):
        TABLE.to_pandas()


def test_a_notebook_gets_a_short_escaped_table() -> None:
    long = Columns({"<b>": [f"<{number}>" for number in range(25)], "mean": [0.123456] * 25})
    shown = long._repr_html_()
    assert "<th>&lt;b&gt;</th>" in shown
    assert "<td>&lt;19&gt;</td><td>0.1235</td>" in shown
    assert "&lt;20&gt;" not in shown
    assert shown.endswith("<p>The first 20 of 25 rows.</p>")


def test_the_repr_counts_the_rows() -> None:
    assert repr(TABLE) == "<2 rows of round, loss, mean, more>"
    assert repr(Columns({"a": [1]})) == "<1 row of a>"
    assert Columns().rows == 0
