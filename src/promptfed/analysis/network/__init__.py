"""How long a finished run would have taken over other links and devices, from its recorded traffic and work.

| module | holds |
|---|---|
| `timeline` | when each round would have ended, and what it would have waited for |
| `drawing` | accuracy over hours, a line per run |
"""
