"""What a site's terms allow, in plain sentences: for an owner who wants to be sure before joining."""

from promptfed.sites.terms import Terms


def describe_terms(terms: Terms) -> list[str]:
    """Return sentences that say all that the terms do."""
    return [
        *_recipes(terms),
        *_length(terms),
        *_noise(terms),
        *_masks(terms),
        *_tests(terms),
    ]


def _recipes(terms: Terms) -> list[str]:
    methods = f"The method must be {_either(terms.methods)}." if terms.methods else "Any method of PromptFed may run."
    backbones = (
        f"The backbone must be {_either(terms.backbones)}."
        if terms.backbones
        else "Any backbone may run, with any weights: a coordinator can choose ones that give images away."
    )
    return [methods, backbones]


def _length(terms: Terms) -> list[str]:
    limits = []
    if terms.max_rounds:
        limits.append(f"{terms.max_rounds:,} rounds in a run")
    if terms.max_runs:
        limits.append(f"{terms.max_runs:,} runs")
    if terms.rounds_for_life:
        limits.append(f"{terms.rounds_for_life:,} rounds in all runs together")
    if not limits:
        return ["There may be any number of runs and rounds."]
    return [f"This site takes part in at most {_and(limits)}."]


def _noise(terms: Terms) -> list[str]:
    own, said = terms.guards, []
    if own.clip:
        said.append(f"No answer may move further than {own.clip:g} (guards.clip).")
    if own.noise:
        said.append(f"Noise of at least {own.noise:g} times the clip is added here before an answer leaves.")
    elif own.epsilon_for_life:
        said.append("Noise must be added here before an answer leaves; how much is left to the recipe.")
    else:
        said.append(
            "Answers may leave without noise: what they tell about images is then limited by nothing but masks."
        )
    budgets = [f"{own.budget:g} in a run"] if own.budget else []
    budgets += [f"{own.epsilon_for_life:g} in all runs together"] if own.epsilon_for_life else []
    if budgets:
        said.append(f"The noisy answers may cost ε={_and(budgets)}.")
    if own.delta < 1:
        said.append(f"δ is at most {own.delta:g}.")
    return said


def _masks(terms: Terms) -> list[str]:
    said = [
        "Nothing leaves without masks: the coordinator sees only sums."
        if terms.guards.secure
        else "Masks are used only where the recipe asks for them: else the coordinator sees this site's own answers."
    ]
    said.append(f"Under masks, a sum is of at least {terms.min_members} sites.")
    if terms.members:
        said.append(f"Under masks, the others are only {_and(sorted(terms.members))}, known by the keys in [members].")
    else:
        said.append(
            "Under masks, the others are any sites that the coordinator has made kits for, known by the key that they "
            "have at the first meeting. List their keys in [members] to be sure; sites key prints one."
        )
    if terms.min_change:
        said.append(
            f"Under masks, the sites of a run are those of every earlier run, or at least {terms.min_change} differ."
        )
    return said


def _tests(terms: Terms) -> list[str]:
    words = {
        "exact": "Test results leave exactly: counts of right answers and losses.",
        "coarse": "Of test results, the count of right answers leaves, to the nearest 5 % or so.",
        "none": "No test result leaves.",
        "auto": "No test result leaves where the recipe has noise at the site; else the count of right answers, to the "
        "nearest 5 % or so.",
    }
    said = [words[terms.evaluation]]
    if terms.evaluation != "none":
        most = f"{terms.max_evaluations:,}" if terms.max_evaluations else "any number of"
        said.append(f"At most {most} test results leave in all, and none with fewer than {terms.min_test} test images.")
    if terms.split != "any":
        said.append(f"Tests are on the {terms.split} images.")
    return said


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _either(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
