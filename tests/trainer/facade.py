"""A GPU that is not there: tensors that say ``gpu``, with values on the CPU, and an error for an operation on both.

Torch's fake CUDA tensors have no values, by which the losses choose tokens, and no backward pass without a driver. A
backend of torch's own for Python has both, but no autocast. It is of the whole process, so this runs in one of its own:
``python -m tests.trainer.facade`` prints the stages that trained.
"""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from care_trainer import recipe
from care_trainer.data.table import Rows
from care_trainer.stages import context, contrastive, joint, retromae, static
from care_trainer.training.context import TrainingContext
from sentence_transformers import SentenceTransformerTrainer
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from tests.trainer.tiny_run import stage, tiny_run

ATEN = torch.ops.aten


class Backend(_DummyBackendModule):
    """The part of a device that autocast and checkpoints use."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def get_rng_state(self, *_: Any) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, *_: Any) -> None:
        torch.set_rng_state(state)

    def device(self, _: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class OnGpu(Tensor):
    """A tensor on the GPU; ``inner`` has its values."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "OnGpu":
        made: OnGpu = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device("gpu:0"),
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        return on_one_device(function, args, options or {})


class Gpu(TorchDispatchMode):
    """Sends what is made on the GPU there."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        return on_one_device(function, args, options or {})


def on_one_device(function: Any, args: Any, options: dict[str, Any]) -> Any:
    """Run an operation on the values; refuse tensors of both devices, but for copies and single numbers."""
    tensors = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, Tensor)]
    ours = [tensor for tensor in tensors if isinstance(tensor, OnGpu)]
    theirs = [tensor for tensor in tensors if tensor.ndim and not isinstance(tensor, OnGpu)]
    if ours and theirs and function not in (ATEN._to_copy.default, ATEN.copy_.default):
        raise RuntimeError(f"{function}: tensors on two devices")
    device = options.get("device")
    to_gpu = torch.device(device).type == "gpu" if device is not None else bool(ours)

    def values(leaf: Any) -> Any:
        return (
            torch.device("cpu") if isinstance(leaf, torch.device) else leaf.inner if isinstance(leaf, OnGpu) else leaf
        )

    def back(leaf: Any) -> Any:
        same = next((tensor for tensor in ours if tensor.inner is leaf), None)  # of an operation in place
        return same if same is not None else OnGpu(leaf) if to_gpu and isinstance(leaf, Tensor) else leaf

    return tree_map(back, function(*tree_map(values, args), **tree_map(values, options)))


@contextlib.contextmanager
def moved(*modules: nn.Module) -> Iterator[None]:
    """Do what ``module.to("cuda")`` does where there is a GPU, until the block ends."""
    places = [
        (own, name, value)
        for module in modules
        for part in module.modules()
        for own in (part._parameters, part._buffers)
        for name, value in own.items()
        if value is not None
    ]
    there: dict[int, Any] = {}
    for own, name, value in places:
        if id(value) not in there:  # tied weights stay tied
            copy = OnGpu(value.detach().clone())
            there[id(value)] = nn.Parameter(copy, value.requires_grad) if isinstance(value, nn.Parameter) else copy
        own[name] = there[id(value)]
    yield
    for own, name, value in places:
        own[name] = value


def one_step(
    context: TrainingContext, model: nn.Module, loss: nn.Module, rows: Rows, collator: Any, **_: Any
) -> dict[str, float]:
    """Take the place of the training loop: forward and backward of one batch on the GPU."""
    batch = {
        name: OnGpu(value) if isinstance(value, Tensor) else value
        for name, value in collator([rows.columns[row] for row in range(6)]).items()
    }
    features, labels = SentenceTransformerTrainer.collect_features(None, batch)  # type: ignore[arg-type]
    module: Any = loss
    if context.stage.gradient_checkpointing:
        module.model[0].sub_modules.document[0].model.gradient_checkpointing_enable({"use_reentrant": False})
    with Gpu(), moved(model if "stays" in sys.argv else loss):
        found = loss(features, labels)
        sum(found.values() if isinstance(found, dict) else [found]).backward()
        trained = [weight for weight in loss.parameters() if weight.requires_grad]
        assert trained and all(weight.grad.device.type == "gpu" for weight in trained if weight.grad is not None)
        assert any(weight.grad is not None for weight in trained)
    print(context.stage.kind)
    return {"steps": 1.0}


if __name__ == "__main__":
    _setup_privateuseone_for_python_backend("gpu", Backend())
    for place in (context, contrastive, joint, retromae, static):
        place.fit = one_step  # type: ignore[attr-defined]
    cached = {"cached": True}
    stages = [
        stage("static", token_dropout=0.1),
        stage("retromae"),
        stage("unsupervised", learn_temperature=True, **cached),
        stage("supervised", hard_negatives=1),
        stage("document", matryoshka=[48, 32], hard_negatives=1),
        stage("align", negatives=4),
        stage("joint", hard_negatives=1, gradient_checkpointing=True, **cached),
        stage("joint", name="frozen", freeze_document=True, hard_negatives=1),
    ]
    with tempfile.TemporaryDirectory() as folder:
        chosen = stages[: 1 if "stays" in sys.argv else None]
        recipe.run_stages(tiny_run(Path(folder), *chosen, document_pooling="mean"))
