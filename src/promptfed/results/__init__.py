"""What a run leaves behind: the run folder and the report, without torch."""
