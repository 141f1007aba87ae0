"""The published CARE weights as two complete sentence-transformers models (extra ``ingest``).

Query: ``[CLS]``, unit length. Document: last token, unit length at the full width, then cut to the width of the query
and not normalised again; the score is the dot product. A query is read as ``<instruct>{sentence}\\n<query>{text}`` with
the sentence of its task (table 8 of the paper); documents are plain, and similarity of two texts instructs both.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from care_qdrant.encoders.batching import read_tokenizer
from care_qdrant.encoders.local.torch import loading
from care_qdrant.encoders.local.weights import ADAPTER_CONFIG, CHECK_FILE, read_json, readable_model, write_json
from care_qdrant.encoders.references import check_adapter_vectors
from care_qdrant.errors import ModelError, needs_extra
from care_qdrant.model.hub import fetch_document_side
from care_qdrant.model.rewrite import merge_adapter, write_weights
from care_qdrant.types import Vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

QUERY_FOLDER, DOCUMENT_FOLDER = "query_encoder", "doc_encoder"
LICENSE = "CC-BY-NC-SA-4.0"
MAX_TOKENS = 512
_SENTENCES = {
    "retrieval": "Given a Chinese medical question, retrieve medical documents that answer the question.",
    "rerank": (
        "Based on a Chinese medical question, evaluate and rank the medical information that provide answers to the "
        "question."
    ),
    "sts": "Retrieve semantically similar text.",
}
QUERY_TASKS = {task: f"<instruct>{sentence}\n<query>" for task, sentence in _SENTENCES.items()}
DOCUMENT_TASKS = {"sts": QUERY_TASKS["sts"]}
DEFAULT_TASK = "retrieval"
_COPIED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
_BASE = "sentence_transformers.base.modules"
_POOLING = "sentence_transformers.sentence_transformer.modules.pooling.Pooling"


def write_query_side(source: Path, folder: Path) -> int:
    """Save the query encoder in float32 as a complete sentence-transformers model, and return its dimensions.

    ``model_type: new`` is read without its remote code.
    """
    with needs_extra("ingest", "the import of a model"):
        import torch
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.base.modules import Normalize, Transformer
        from sentence_transformers.sentence_transformer.modules import Pooling

    with loading(source), _merged(source) as whole, readable_model(whole) as native:
        transformer: Transformer = Transformer(
            str(native), max_seq_length=MAX_TOKENS, model_kwargs={"dtype": torch.float32}
        )
    width = int(transformer.get_embedding_dimension())
    model = SentenceTransformer(
        modules=[transformer, Pooling(width, "cls"), Normalize()],
        prompts={"query": QUERY_TASKS[DEFAULT_TASK]},
        similarity_fn_name="dot",
        device="cpu",
    )
    check_adapter_vectors(partial(plain_vectors, model), source)
    model.save_pretrained(str(folder), create_model_card=False)
    return width


def write_document_side(source: Path, folder: Path, dim: int, base: str | None = None) -> None:
    """Save the document encoder as a complete sentence-transformers model, its files copied or merged one by one.

    ``base`` is the base of an adapter, a folder or hub name; None takes the one that the adapter names.
    """
    folder.mkdir(parents=True)
    with needs_extra("ingest", "the import of a model"):
        from sentence_transformers import SentenceTransformer
    _write_whole(source, folder, base)
    _write_tokenizer(folder)
    _write_modules(folder, dim)
    if (source / CHECK_FILE).is_file():
        check_adapter_vectors(partial(plain_vectors, SentenceTransformer(str(folder), device="cpu").float()), source)


@contextmanager
def _merged(source: Path) -> Iterator[Path]:
    """Yield the folder of a transformers model; for an adapter, a temporary one that is merged with its base."""
    if not (source / ADAPTER_CONFIG).is_file():
        yield source
        return
    with TemporaryDirectory(prefix="care-merged-") as folder:
        _write_whole(source, Path(folder))
        yield Path(folder)


def _write_whole(source: Path, folder: Path, base: str | None = None) -> None:
    """Write the checked weights, configuration and tokenizer of a transformers model, an adapter merged into them."""
    weights = source
    if (source / ADAPTER_CONFIG).is_file():
        weights = _base(source, base)
        merge_adapter(weights, source, folder)
    else:
        with readable_model(source):
            write_weights(source, folder)
    for name in _COPIED:
        file = next((place / name for place in (source, weights) if (place / name).is_file()), None)
        if file is not None:
            shutil.copyfile(file, folder / name)


def plain_vectors(model: "SentenceTransformer", texts: list[str]) -> Vectors:
    """Encode texts without any prompt."""
    vectors: Vectors = model.encode(texts, prompt="", show_progress_bar=False)
    return vectors


def _base(adapter: Path, base: str | None) -> Path:
    settings = read_json(adapter / ADAPTER_CONFIG)
    name = base or settings.get("base_model_name_or_path")
    if not name:
        raise ModelError(f"{adapter}: its {ADAPTER_CONFIG} names no base; give it with --base")
    revision = None if base or Path(name).is_dir() else settings.get("revision")
    try:
        return fetch_document_side(name, revision=revision)
    except ModelError as error:
        if base:
            raise
        raise ModelError(
            f"{adapter}: its base {name!r} (base_model_name_or_path in {ADAPTER_CONFIG}) is not on this machine and "
            "cannot be downloaded; give the folder of the base with --base"
        ) from error


def _write_tokenizer(folder: Path) -> None:
    """Make the tokenizer append its end-of-sequence token to every text, unless it does so already."""
    from tokenizers.processors import TemplateProcessing

    path, settings = folder / "tokenizer.json", read_json(folder / "tokenizer_config.json")
    tokenizer = read_tokenizer(folder)
    encoding = tokenizer.encode("a")
    if encoding.special_tokens_mask[-1]:
        return
    marker = settings.get("eos_token")
    marker = marker["content"] if isinstance(marker, dict) else marker
    number = tokenizer.token_to_id(marker) if marker else None
    if number is None:
        raise ModelError(f"{path}: appends no end marker, and knows no end-of-sequence token {marker!r} to append")
    tokenizer.post_processor = TemplateProcessing(single=f"$A {marker}", special_tokens=[(marker, number)])
    tokenizer.save(str(path))


def _write_modules(folder: Path, dim: int) -> None:
    """Write the modules of sentence-transformers: last-token pooling, unit length, a cut to the first dimensions."""
    import torch
    from safetensors.torch import save_file

    hidden = int(read_json(folder / "config.json")["hidden_size"])
    if hidden < dim:
        raise ModelError(f"{folder}: gives {hidden} dimensions, fewer than the {dim} of the query encoder")
    kinds = [f"{_BASE}.transformer.Transformer", _POOLING, f"{_BASE}.normalize.Normalize", f"{_BASE}.dense.Dense"]
    kinds = kinds if hidden > dim else kinds[:-1]
    paths = ["", *(f"{number}_{kind.rsplit('.', 1)[-1]}" for number, kind in enumerate(kinds[1:], start=1))]
    entries = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    for path in paths[1:]:
        (folder / path).mkdir()
    write_json(folder / "modules.json", entries)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": MAX_TOKENS, "do_lower_case": False})
    write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": {"document": ""}, "default_prompt_name": None, "similarity_fn_name": "dot"},
    )
    write_json(folder / paths[1] / "config.json", {"embedding_dimension": hidden, "pooling_mode": "lasttoken"})
    if hidden > dim:
        activation = "torch.nn.modules.linear.Identity"
        dense = {"in_features": hidden, "out_features": dim, "bias": False, "activation_function": activation}
        write_json(folder / paths[3] / "config.json", dense)
        save_file({"linear.weight": torch.eye(dim, hidden)}, folder / paths[3] / "model.safetensors")
