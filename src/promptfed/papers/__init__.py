"""A paper's table: the runs it needs, and our numbers beside the printed ones."""
