"""Tables and the HTML report: they read run folders only."""

from promptfed.report.across import Paper, Place, across
from promptfed.report.folder import RunFolder, read_run, run_folders
from promptfed.report.page import write_report
from promptfed.report.tables import compare, headline

__all__ = ["Paper", "Place", "RunFolder", "across", "compare", "headline", "read_run", "run_folders", "write_report"]
