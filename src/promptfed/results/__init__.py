"""What a run leaves behind: the run folder and the report, without torch.

`read_run(DIR)` returns a whole run folder as one value.
"""

from promptfed.results.folder.parts import read_summary
from promptfed.results.folder.reader import RunFolder, read_run, run_folders

__all__ = ["RunFolder", "read_run", "read_summary", "run_folders"]
