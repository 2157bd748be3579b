"""Recipes that nobody means, as a coordinator could send them to a site."""

from support.three_sites import recipe

GOOD = recipe("fedavg").to_toml()
BAD_RECIPES = (
    "harmed",
    "\0",
    "seed = " + "9" * 5000,
    "seed = " + "[" * 5000,
    "[" + "a." * 3000 + "a]\nb = 1\n",
    "method = 3\n",
    GOOD.replace("clients = 3", "clients = 1000000000"),
    GOOD.replace("clients = 3", "clients = -1"),
    GOOD.replace("rounds = 3", "rounds = 9223372036854775807"),
    GOOD.replace("lr = 0.05", "lr = nan"),
    GOOD.replace("lr = 0.05", "lr = 1e308"),
    GOOD.replace("batch = 4", 'batch = "$(touch harmed)"'),
    GOOD.replace('name = "fedavg"', 'name = "../../etc/passwd"'),
    GOOD.replace('name = "fedavg"', 'name = "__import__"'),
    GOOD.replace('name = "cnn"', 'name = "cnn"\nweights = "/etc/passwd"'),
    GOOD.replace("channels = [4, 4]", "channels = [99999999]"),
    GOOD.replace("channels = [4, 4]", 'channels = ["/etc/passwd"]'),
    GOOD + "[guards]\nnoise = -1\n",
    GOOD + '[guards]\nrobust = "os.system"\n',
    GOOD + "[harm]\nfull = true\n",
)
