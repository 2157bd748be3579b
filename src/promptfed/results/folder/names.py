"""The name of every file and folder that a run folder may hold; nothing else in PromptFed spells one out."""

import re

PICTURE_FILE = re.compile(r"(?P<name>.+)-client-(?P<client>\d+)\.png")  # what `picture_file` returns

# Every run
RECIPE = "recipe.toml"  # the recipe, with every default spelled out
ENVIRONMENT = "env.json"  # where the run happened
PARTITION = "partition.json"  # which images each client holds
ROUNDS = "rounds.jsonl"  # one JSON object per finished round
SUMMARY = "summary.json"  # the result; absent until the run is finished
PREDICTIONS = "predictions.npz"  # the final models' answer for every test image
REPORT = "report.html"  # the report, in one file
EACH = "clients"  # arrays with a number for each client, where they are many: 000012.npz of a round, summary.npz
LOCK = ".lock"  # held while a process writes into the folder
TRACKED = "tracked.json"  # where trackers such as MLflow have this run; only if it is tracked
TENSORBOARD = "tensorboard"  # TensorBoard's event files

# What a run resumes from
CHECKPOINT = "checkpoint"  # the folder of the files below
STATE = "state.json"  # the commit point: it names every checkpoint file that counts

# What a method shows at the end
FIGURES = "figures.json"  # how the clients' prompts, descriptors and attention compare
PICTURES = "pictures"  # learned prompts, a PNG per prompt and client
DOMAINS = "domains.json"  # how the method sorts test images by domain
CONTACT_SHEET = "contact-sheet.jpg"  # some of those images

# What later commands add
DRAWN = "figures"  # what `promptfed figure` drew: KIND.png, with its numbers in KIND.json
QUALITY = "quality.json"  # what `promptfed quality` measured
AUDIT = "audit.json"  # what `promptfed audit` could rebuild from the uploads
TRACEBACK = "traceback.txt"  # where in the code a bug ended a run of a paper's table

# Runs over real sites
FEDERATION = "federation.json"  # the sites by name, how many join later, and the run's id; only such runs have it
SITES = "sites.json"  # which site is which client
NEWCOMERS = "newcomers.json"  # the same for sites that joined later
SUMMED = "summed.json"  # whose masked answers the last secure sum contains
JOB = "job.json"  # the NVIDIA FLARE job at work
JOB_FOLDER = "job"  # that job's definition
FAILED = "failed.json"  # why the run cannot continue
FAILED_SHOWN = "failed-told.json"  # the same, after a person has seen it
WINDOW = ".window"  # held while `promptfed sites run` watches the run


def server_file(finished: int) -> str:
    """Return the checkpoint file of the server's tree after that many rounds."""
    return f"server-{finished:06d}.safetensors"


def version_file(finished: int) -> str:
    """Return the checkpoint file of an earlier tree of the server, which clients at work have started from."""
    return f"version-{finished:06d}.safetensors"


def personal_file(number: int) -> str:
    """Return the checkpoint file of the `number`-th batch of personal trees."""
    return f"personal-{number:06d}.safetensors"


def personal_number(file: str) -> int:
    """Return the number in the name of such a file."""
    return int(file.removeprefix("personal-").removesuffix(".safetensors"))


def kept_file(name: str, finished: int) -> str:
    """Return the file of what a method keeps of every round, such as words/000003.safetensors."""
    return f"{name}s/{finished:06d}.safetensors"


def picture_file(name: str, client: int) -> str:
    """Return the file of a client's learned prompt, inside `PICTURES`."""
    return f"{name}-client-{client:03d}.png"
