"""Tables and the HTML report: they read run folders only."""

from promptfed.results.folder.reader import RunFolder, read_run, run_folders
from promptfed.results.report.across import Paper, Place, across
from promptfed.results.report.page import write_report
from promptfed.results.report.tables import compare, headline

__all__ = ["Paper", "Place", "RunFolder", "across", "compare", "headline", "read_run", "run_folders", "write_report"]
