"""A live view of runs, in the browser: read as they grow, drawn as the report draws them, without torch.

finding.py  which run folders there are, and which a process is at work in
tail.py     one rounds.jsonl, read as it grows and again where it was cut back
watched.py  one run: what it is, how far, how accurate, and what is wrong with it
board.py    all runs, what has changed since, and the drawing of some of them
stream.py   the board as server-sent events
live.py     the routes and the server
"""
