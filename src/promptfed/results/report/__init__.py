"""Tables and the HTML report: they read run folders only."""

from promptfed.results.folder.reader import RunFolder, read_run, run_folders
from promptfed.results.report.across import PaperLayout, PaperPlace, across
from promptfed.results.report.page import write_report
from promptfed.results.report.tables import compare, headline

__all__ = [
    "PaperLayout",
    "PaperPlace",
    "RunFolder",
    "across",
    "compare",
    "headline",
    "read_run",
    "run_folders",
    "write_report",
]
