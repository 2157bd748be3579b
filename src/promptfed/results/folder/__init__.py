"""The run folder: every file name in it, and all reading and writing of them.

    names.py    what each file and folder in it is called
    record.py   writing a run's rounds and checkpoints, and taking them up again
    values.py   what its files say, as frozen values
    metrics.py  what summary.json says beyond accuracy
    predictions.py  writing and reading predictions.npz
    parts.py    reading its files one by one
    reader.py   reading all of it into one value, `RunFolder`

    recipe.toml      the recipe, with every default spelled out
    env.json         where the run happened
    partition.json   which images each client holds
    rounds.jsonl     one JSON object per finished round
    summary.json     the result, once the run is finished
    predictions.npz  what the final models answer for every test image
    report.html      the report
    checkpoint/      what a stopped run resumes from; state.json is its commit point
    figures.json, pictures/, domains.json, contact-sheet.jpg, words/       what a method shows
    tracked.json, tensorboard/                                             if the run is tracked
    figures/, quality.json, audit.json                                     what later commands add
    federation.json, sites.json, newcomers.json, summed.json, job.json     only of runs over real sites

docs/run-folder.md says what is in each of them.
"""
