"""A paper's table: the runs it needs, and our numbers beside the printed ones.

`read_table(DIR)` returns the content of a table.json, and `to_markdown` renders it, both without torch.
"""

from promptfed.papers.rendering import read_table, to_markdown

__all__ = ["read_table", "to_markdown"]
