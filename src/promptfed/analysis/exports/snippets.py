"""The few lines of code in a model card that use an exported model; they run without PromptFed."""

from promptfed.analysis.exports.opening import ToExport

GRAPH = """import numpy as np
{imports}

photo = Image.open("photo.jpg").convert("RGB").resize(({width}, {height}), Image.Resampling.BICUBIC)
images = np.array(photo)[None]  # bytes [1, {height}, {width}, 3]
{own}{ask}
"""
IMPORTS = {
    "pt2": ["import torch", "from PIL import Image"],
    "onnx": ["import onnxruntime", "from PIL import Image"],
}
ASK = {
    "pt2": """model = torch.export.load("model.pt2").module()
probabilities = model(torch.from_numpy(images){own})[0]""",
    "onnx": """model = onnxruntime.InferenceSession("model.onnx")
probabilities = model.run(None, {{"images": images{own}}})[0][0]""",
}
OWN = {"pt2": ("torch", ", own"), "onnx": ("numpy", ", **own")}
SCALED = (
    "A photograph is scaled to {height} × {width} pixels with a bicubic filter, whatever its shape, as in training. "
    "All else that is done to an image is in the graph."
)
SHARED = (
    "Weights that all clients share are in the graph. What is a client's own is in its file in `clients`, and becomes "
    "an input of the graph.\n\n"
)
PIPELINE = """```python
from transformers import pipeline

classify = pipeline("image-classification", model=".")
for answer in classify("photo.jpg"):
    print(answer["label"], answer["score"])
```

The folder is an ordinary model of transformers. Its processor scales and normalises a photograph as in training."""


def of_graph(kind: str, source: ToExport) -> str:
    """Return the code that asks a graph, and what to know about it."""
    height, width = source.bundle.shape
    package, argument = OWN[kind]
    own = f'own = load_file("clients/{source.clients[0]}.safetensors")\n'
    imports = [*IMPORTS[kind], *([f"from safetensors.{package} import load_file"] if source.together else [])]
    code = GRAPH.format(
        imports="\n".join(imports),
        width=width,
        height=height,
        own=own if source.together else "",
        ask=ASK[kind].format(own=argument if source.together else ""),
    )
    shared = SHARED if source.together else ""
    return f"{shared}```python\n{code}```\n\n{SCALED.format(height=height, width=width)}"
