"""A learned word as a file of its own: `learned_embeds.safetensors`, which other programs load.

The file holds one tensor [v, W] in float32 under the word's token. diffusers' `load_textual_inversion` takes it as it
is; the common web interfaces take it too and call the word by the file's name.
"""

from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from promptfed.analysis.generate import PROMPT, client_word, global_word, with_clients
from promptfed.core.errors import PromptFedError
from promptfed.runs.finished import FinishedRun, Words

NAME = "learned_embeds.safetensors"


def export_word(
    run: FinishedRun | Words, out: Path, *, token: str, client: int | None = None, prompt: str = PROMPT
) -> Tensor:
    """Write the global word, or a client's own as it is in `prompt`, under `token`; return it [v, W]."""
    if token.split() != [token]:
        raise PromptFedError(f'"{token}" cannot be a token: it must be one word without spaces, such as <clematis>.')
    if out.suffix != ".safetensors":
        raise PromptFedError(f"{out} must end in .safetensors, which tells other programs the format.")
    word = global_word(run) if client is None else client_word(with_clients(run), client, prompt)
    word = word.detach().float().cpu().contiguous()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(save({token: word}, metadata={"format": "pt"}))
    return word
