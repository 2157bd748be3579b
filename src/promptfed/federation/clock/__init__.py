"""A simulated clock: how long clients take on given links and devices, and whose answers the server waits for.

| module | holds |
|---|---|
| `links` | what links and devices are like: the profiles by name, and those of a user's own |
| `attempts` | how long a client waits, receives, trains and sends, drawn by keys |
| `options` | the keys of a recipe's [clock] table |
| `arrivals` | who starts from which model, and whose answers make the next one |
| `rebasing` | an answer to an older model as one to the present model |
| `loop` | the round loop by this clock |
"""
