"""A model's graph in a file that torch or ONNX Runtime opens by itself: written, and read back to be asked."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptfed.analysis.exports.network import Network
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from promptfed.data.dataset import Images

Answers = NDArray[np.float32]  # probabilities [N, classes]
Ask = Callable[[Images, Tree], Answers]
IMAGES, PROBABILITIES = "images", "probabilities"  # the names of a graph's first input and of its output


def trace(network: Network, images: Images, own: Tree, name: str) -> Any:
    """Return the network's graph for any number of images."""
    many = {0: torch.export.Dim("batch")}
    given: tuple[Any, ...] = (torch.from_numpy(images), own) if own else (torch.from_numpy(images),)
    shapes = (many, dict.fromkeys(own)) if own else (many,)
    try:
        with torch.no_grad(), _quiet():
            program = torch.export.export(network, given, dynamic_shapes=shapes)
    except Exception as error:  # what torch.export raises has no common type
        if "specialized it to be a constant" in str(error):
            reason = "its answer is computed image by image, and a graph needs one computation for any number of them"
        else:
            reason = f"torch.export says: {_first_line(error)}"
        raise PromptFedError(f"A model of {name} cannot be exported as a graph: {reason}.") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it has the paths of this machine
    return program


def write_pt2(program: Any, path: Path, own: Sequence[str]) -> None:
    """Write a graph as torch saves it."""
    with _quiet():
        torch.export.save(program, path)


def read_pt2(path: Path) -> Ask:
    """Return what asks a graph that torch has saved."""
    with _quiet():
        module = torch.export.load(path).module()

    def ask(images: Images, own: Tree) -> Answers:
        with torch.no_grad(), _quiet():
            answers: Tensor = module(torch.from_numpy(images), *([own] if own else []))
        return answers.numpy()

    return ask


def write_onnx(program: Any, path: Path, own: Sequence[str]) -> None:
    """Write a graph as an ONNX file; weights of more than 2 GB lie beside it."""
    _need_onnx()
    try:
        with _quiet():
            made = torch.onnx.export(
                program, dynamo=True, input_names=[IMAGES, *own], output_names=[PROBABILITIES], verbose=False
            )
            assert made is not None
            _drop_paths(made)
            made.save(path)
    except Exception as error:  # of many types of torch and onnxscript
        raise PromptFedError(f"torch cannot write this model as ONNX: {_first_line(error)}.") from error


def read_onnx(path: Path) -> Ask:
    """Return what asks an ONNX file on the CPU."""
    _need_onnx()
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # of many types of its own
        raise PromptFedError(f"ONNX Runtime cannot run this model: {_first_line(error)}.") from error

    def ask(images: Images, own: Tree) -> Answers:
        given = {IMAGES: images} | {name: value.numpy() for name, value in own.items()}
        return np.asarray(session.run([PROBABILITIES], given)[0])

    return ask


def quantise(path: Path, out: Path) -> None:
    """Write the ONNX file again with the weights of its matrix products in 8 bits."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    whole = onnx.load(path)
    del whole.graph.value_info[:]  # the shapes of weights, which are transposed on the way
    products = ["MatMul", "Gemm"]  # not convolutions: ONNX Runtime has no kernel for those on every CPU
    try:
        with _quiet():
            quantize_dynamic(whole, out, op_types_to_quantize=products, weight_type=QuantType.QInt8)
    except Exception as error:  # of many types of onnx and onnxruntime
        raise PromptFedError(f"ONNX Runtime cannot write this model in 8 bits: {_first_line(error)}.") from error


def _need_onnx() -> None:
    """Say how to install what ONNX files need."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise PromptFedError('ONNX needs the [export] extra: pip install "promptfed[export]".') from error


def _drop_paths(made: Any) -> None:
    """Remove the notes of where in the source a node comes from: they have the paths of this machine."""
    made.model.metadata_props.clear()
    for node in made.model.graph.all_nodes():
        node.metadata_props.clear()
    for value in made.model.graph.initializers.values():
        value.metadata_props.clear()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what torch and ONNX say for their own developers from the user."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "root", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
