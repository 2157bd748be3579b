"""Every scenario of the field runs on a CPU: its table on the embedded images, one row, one round."""

from pathlib import Path

import pytest

from promptfed.papers.plan import TablePlan
from promptfed.papers.reproduce import find_table, reproduce
from promptfed.runs import registry

SMALL = ("rounds=1", "data.shots=2", "device=cpu")
SHOPS = [name.removeprefix("field/") for name in registry.tables() if name.startswith("field/shops-")]
COLUMNS = {"shops-shots": "s1", "shops-domains": "shop", "shops-unseen": "street", "shops-privacy": "eps2"}


@pytest.mark.parametrize("name", SHOPS)
def test_a_scenario_has_all_that_its_table_shows(name: str, tmp_path: Path) -> None:
    words = (*SMALL, *(["join_rounds=1"] if name == "shops-newcomers" else []))
    columns = (COLUMNS[name],) if name in COLUMNS else ()
    table = find_table(f"field/{name}")
    outcome = reproduce(table, TablePlan(tmp_path, words, (0,), ("promptfl",), columns))
    (entry,) = outcome["rows"]
    assert entry["ours"]["problems"] == {}
    beside = {key: value for key, value in entry["ours"].get("beside", {}).items() if key != "memory"}
    assert None not in [entry["ours"]["mean"], *beside.values()]
    assert set(beside) == {*table.measures[1:]} - {"memory"}
    (cell,) = outcome["statistics"]["cells"]
    assert (cell["mean"], cell["error"], cell["rank"]) == (entry["ours"]["mean"], None, 1.0)
    if entry["ours"]["per_client"] and table.measures[0] == "unseen":
        assert entry["ours"]["mean"] == entry["ours"]["per_client"][-1]
