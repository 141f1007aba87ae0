"""The peak memory of a training step, counted by running it on tensors that have a shape and no values.

The step is the trainer's own: its encoders with adapters, checkpointing and autocast, InfoNCE, the chunked
cross-entropy and RetroMAE's decoder. PyTorch's fake tensors run it in seconds at any size, and every storage that it
allocates is counted while it lives. Kernels are those of a CPU, which keep a dropout mask in four bytes where a GPU
takes one.

A frozen base that would be quantised is counted in the dtype of its checkpoint.
"""

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from transformers import AutoModel, AutoModelForMaskedLM

from care_trainer.config import Causal, Joint, RetroMae, Side, Stage, Tower
from care_trainer.config.stages import PairStage
from care_trainer.losses.language import DecoderLayer, chunk_rows, chunked_cross_entropy, decode, head_of
from care_trainer.losses.objectives import Batch, InfoNce
from care_trainer.models.towers import adapter_config

MOMENTS_BYTES, GRADIENT_BYTES = 8, 4
"""Adam's two moments and the gradient of a weight that trains, in float32."""
_CHUNKS = 3
"""Chunks of a vocabulary's logits that are run: the next ones take the same memory."""


class Encoder(nn.Module):
    """An encoder on the meta device, with what trains of it in float32, as the trainer loads it.

    Args:
        config: Configuration of the transformer.
        tower: Settings of the side.
        frozen: Dtype of weights that do not train.
    """

    def __init__(self, config: Any, tower: Tower, frozen: torch.dtype) -> None:
        super().__init__()
        with torch.device("meta"):
            self.model = AutoModel.from_config(  # type: ignore[no-untyped-call]
                config, dtype=frozen if tower.lora else torch.float32, attn_implementation=tower.attn_implementation
            )
            if tower.lora is not None:
                self.model.requires_grad_(False)
                self.model.add_adapter(adapter_config(tower.lora))
                for name, parameter in self.model.named_parameters():
                    if "lora_" in name:
                        parameter.data = parameter.data.float()
        for name, parameter in self.model.named_parameters():
            if "pooler" in name:
                parameter.requires_grad_(False)
        self.pooling = Pooling(config.hidden_size, tower.pooling)
        self.width, self.max_tokens = config.hidden_size, tower.max_tokens

    def forward(self, rows: int, length: int) -> dict[str, Tensor]:
        """Return the token vectors and sentence vectors of texts, by sentence-transformers' names."""
        mask = torch.ones(rows, length, dtype=torch.long)
        visible = torch.ones(rows, 1, length, length, dtype=torch.bool)  # of padded texts, as in nearly every batch
        hidden = self.model(input_ids=torch.zeros_like(mask), attention_mask=visible).last_hidden_state
        features: dict[str, Tensor] = self.pooling({"token_embeddings": hidden, "attention_mask": mask})
        return features


def step_bytes(stage: Stage, encoders: Mapping[Side, Encoder], lengths: Mapping[Side, int], processes: int) -> int:
    """Return the peak memory of a training step of one process after the first one, in bytes."""
    with FakeTensorMode():
        lone = _LanguageHead(stage, *encoders.values()) if isinstance(stage, RetroMae | Causal) else None
        step = nn.ModuleList([*encoders.values(), *([lone] if lone is not None else [])])
        _allocate(step)
        if stage.gradient_checkpointing:
            for encoder in encoders.values():
                encoder.model.activation_checkpointing_enable({"use_reentrant": False})
        parameters = list(step.parameters())
        held = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
        buckets = GRADIENT_BYTES * trained if processes > 1 else 0  # DistributedDataParallel's own copy of gradients
        with _Live([*parameters, *step.buffers()]) as live:
            if lone is not None:
                lone(stage, lengths)
            else:
                _contrast(stage, encoders, lengths, processes)
        return int(held + MOMENTS_BYTES * trained + buckets + live.peak)


def _contrast(stage: Stage, encoders: Mapping[Side, Encoder], lengths: Mapping[Side, int], processes: int) -> None:
    """Run a step of a stage that compares vectors: all rows at once, or with gradient caching in mini-batches."""
    rows = stage.rows_of_process(processes)
    texts = {side: rows * columns for side, columns in _columns(stage, list(encoders)).items()}
    if not stage.cached:
        vectors = [_encode(stage, encoders[side], texts[side], lengths[side]) for side in encoders]
        _compare(stage, vectors, rows, processes).backward()  # type: ignore[no-untyped-call]
        return
    vectors = [torch.zeros(texts[side], encoders[side].width, requires_grad=True) for side in encoders]
    _compare(stage, vectors, rows, processes).backward()  # type: ignore[no-untyped-call]
    for side, encoder in encoders.items():
        fitting = stage.mini_batch_tokens // lengths[side] if stage.mini_batch_tokens else stage.mini_batch_size
        starts = range(0, texts[side], max(fitting, 1))
        for start in starts[:2]:  # the second mini-batch has the gradients of the first beside it
            found = _encode(stage, encoder, min(starts.step, texts[side] - start), lengths[side])
            found.sum().backward()  # type: ignore[no-untyped-call]


def _columns(stage: Stage, sides: list[Side]) -> dict[Side, int]:
    """Return the texts of a row that each encoder that trains reads."""
    documents = 1 + stage.hard_negatives if isinstance(stage, PairStage) else 1
    if isinstance(stage, Joint):
        return {side: 1 if side == "query" else documents for side in sides}
    return dict.fromkeys(sides, 1 + documents if isinstance(stage, PairStage) else 1)


def _encode(stage: Stage, encoder: Encoder, rows: int, length: int) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=stage.bf16):
        vectors: Tensor = encoder(rows, length)["sentence_embedding"]
    return vectors.float()


def _compare(stage: Stage, vectors: list[Tensor], rows: int, processes: int) -> Tensor:
    """Return InfoNCE of the rows of a process against the documents of all of them."""
    documents = 1 + stage.hard_negatives if isinstance(stage, PairStage) else 1
    queries = vectors[0][:rows]
    candidates = torch.zeros(rows * documents * processes, queries.shape[1], requires_grad=True)
    columns = [queries, *torch.split(candidates, [rows, len(candidates) - rows])]
    keys = [torch.zeros(len(column), dtype=torch.long) for column in columns]
    loss: Tensor = InfoNce(0.02)(Batch(columns, keys))
    return loss + torch.stack([column.sum() for column in vectors]).sum()


class _LanguageHead(nn.Module):
    """The head of language modelling over an encoder, and RetroMAE's decoder."""

    def __init__(self, stage: RetroMae | Causal, encoder: Encoder) -> None:
        super().__init__()
        config = encoder.model.config
        with torch.device("meta"):
            self.encoder, self.words = encoder, encoder.model.get_input_embeddings()
            self.head: Any = self._linear
            if isinstance(stage, RetroMae):
                language_model = AutoModelForMaskedLM.from_config(config)  # type: ignore[no-untyped-call]
                language_model.get_output_embeddings().weight = self.words.weight
                self.head = head_of(language_model)
                self.position = nn.Embedding(encoder.max_tokens, config.hidden_size)
                self.layer = DecoderLayer(config.hidden_size, config.num_attention_heads, config.intermediate_size)

    def _linear(self, hidden: Tensor) -> Tensor:
        return nn.functional.linear(hidden.float(), self.words.weight)

    def forward(self, stage: RetroMae | Causal, lengths: Mapping[Side, int]) -> None:
        """Run a step of language modelling, its backward pass included."""
        (length,) = lengths.values()
        rows = stage.rows_of_process(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=stage.bf16):
            features = self.encoder(rows, length)
        hidden, sentence = features["token_embeddings"].flatten(0, 1), features["sentence_embedding"]
        with torch.autocast("cpu", torch.bfloat16, enabled=stage.bf16):
            loss = self._loss(hidden[: int(len(hidden) * getattr(stage, "encoder_masked", 1.0))])
            if isinstance(stage, RetroMae):
                visible = torch.ones(rows, length, length, dtype=torch.bool)
                ids = torch.zeros(rows, length, dtype=torch.long)
                decoded = decode(self.layer, self.words(ids), self.position.weight[:length], sentence, visible)
                loss = loss + self._loss(decoded.flatten(0, 1))
        loss.backward()  # type: ignore[no-untyped-call]
        del loss, features, hidden, sentence

    def _loss(self, hidden: Tensor) -> Tensor:
        vocabulary = len(self.words.weight)
        predicted = hidden[: _CHUNKS * chunk_rows(vocabulary)].clone()
        targets = torch.zeros(len(predicted), dtype=torch.long)
        return chunked_cross_entropy(self.head, predicted, targets, vocabulary) + hidden.sum()


class _Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all storages that operations allocate, while they live."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self.known = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count what it allocated."""
        result = function(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._count, result)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.known:
            self.known.add(storage._cdata)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._freed, storage._cdata, storage.nbytes())

    def _freed(self, storage: int, size: int) -> None:
        self.known.discard(storage)
        self.now -= size


def _allocate(module: nn.Module) -> None:
    """Replace the parameters and buffers of a module, on the meta device, by fake ones on the CPU."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                if parameter not in made:
                    value = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
                    made[parameter] = nn.Parameter(value, requires_grad=parameter.requires_grad)
                part._parameters[name] = made[parameter]
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device="cpu")
