"""A pair of any size with random weights: speed does not depend on the weights."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from care_qdrant.model.export.onnx import export_query_encoder
from care_qdrant.model.folder import write_checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

WIDTH = 768
MAX_TOKENS = 512
_SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_EXAMPLES = Path(__file__).parents[2] / "examples" / "sample"


def sample_queries(tokens: int = 36) -> list[str]:
    """Return distinct queries of about ``tokens`` tokens, cut from the sample corpus."""
    lines = (_EXAMPLES / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    whole = "".join(json.loads(line)["text"] for line in lines)
    step = tokens - 2
    return [whole[start : start + step] for start in range(0, len(whole) - step, step)]


@contextmanager
def named_or_random_pair(model: Path | None, layers: int) -> Iterator[Path]:
    """Yield the folder ``model``, or a random pair in a temporary folder if it is None."""
    if model is not None:
        yield model
        return
    with tempfile.TemporaryDirectory() as folder:
        yield write_random_pair(Path(folder) / "pair", layers)


def write_random_pair(folder: Path, layers: int, width: int = WIDTH) -> Path:
    """Write a CARE folder whose query encoder is a BERT of that depth and width, with ONNX files; return the folder.

    The document encoder is a BERT of one layer, since no script embeds documents.
    """
    queries = sample_queries()
    query = _write_tower(folder.with_name(folder.name + "-query"), queries, layers, width)
    document = _write_tower(folder.with_name(folder.name + "-document"), queries, 1, width)
    onnx = export_query_encoder(query, queries[:50])
    write_checkpoint(folder, name=f"random-bert-{layers}", query=query, document=document, onnx=onnx)
    return folder


def _write_tower(folder: Path, texts: Sequence[str], layers: int, width: int) -> Path:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import BertConfig, BertModel, set_seed

    set_seed(layers)
    base = folder.with_name(folder.name + "-base")
    tokenizer = _character_tokenizer(texts)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=MAX_TOKENS,
    )
    BertModel(config).save_pretrained(base)
    tokenizer.save_pretrained(base)
    transformer = Transformer(str(base), max_seq_length=MAX_TOKENS)
    model = SentenceTransformer(modules=[transformer, Pooling(width, "cls"), Normalize()], device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def _character_tokenizer(texts: Sequence[str]) -> "PreTrainedTokenizerFast":
    """Return BERT's tokenizer with a vocabulary of single characters, as Chinese BERTs have it."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = sorted({character.lower() for text in texts for character in text if not character.isspace()})
    vocabulary = {token: number for number, token in enumerate([*_SPECIAL_TOKENS, *letters])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    frame = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=frame)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=MAX_TOKENS
    )
