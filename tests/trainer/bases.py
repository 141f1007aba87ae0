"""Stand-ins for the published bases, next to no layers: their architecture, widths, dtypes, files and tokenizers."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    GteConfig,
    GteForMaskedLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    set_seed,
)

from tests.trainer.tiny_run import pairs

TEXTS = [text for row in pairs() for text in (row["query"], row["positive"])]


def gte_mlm_base(folder: Path) -> Path:
    """Save what gte-multilingual-mlm-base is: a masked language model of width 768 with XLM-R's tokenizer layout."""
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        TEXTS, trainers.UnigramTrainer(vocab_size=300, special_tokens=specials, unk_token="<unk>", show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        sep_token="</s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_max_length=8192,
    )
    set_seed(0)
    config = GteConfig(
        vocab_size=len(fast), hidden_size=768, num_hidden_layers=1, num_attention_heads=12, intermediate_size=64
    )
    GteForMaskedLM(config).half().save_pretrained(folder)
    fast.save_pretrained(folder)
    as_published(folder)
    return folder


def as_published(folder: Path) -> None:
    """Return a saved GTE model the key names and the configuration of gte-multilingual-mlm-base."""
    weights = load_file(folder / "model.safetensors")
    renamed = {name.replace("gte.", "new.", 1) if name.startswith("gte.") else name: weights[name] for name in weights}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    del config["rope_parameters"], config["dtype"]
    published = {
        "model_type": "new",
        "architectures": ["NewForMaskedLM"],
        "auto_map": {"AutoConfig": "someone/new-impl--configuration.NewConfig"},
        "torch_dtype": "float16",
        "layer_norm_type": "layer_norm",
        "logn_attention_clip1": False,
        "logn_attention_scale": False,
        "pack_qkv": True,
        "position_embedding_type": "rope",
        "rope_scaling": None,
        "rope_theta": 160000,
        "unpad_inputs": False,
        "use_memory_efficient_attention": False,
    }
    path.write_text(json.dumps(config | published), encoding="utf-8")


def qwen3_base(folder: Path, hidden: int, layers: int = 1, intermediate: int = 64) -> Path:
    """Save what Qwen3-4B-Base and -8B-Base are: a decoder of their width, whose tokenizer appends nothing."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        model_max_length=131072,
    )
    set_seed(0)
    config = Qwen3Config(
        vocab_size=len(fast),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=intermediate,
        eos_token_id=0,
        bos_token_id=0,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).bfloat16().save_pretrained(folder, max_shard_size="100KB")
    fast.save_pretrained(folder)
    return folder


def write_paper_data(folder: Path) -> None:
    """Write tiny data under the names of the shipped configurations."""
    rows = pairs()
    flag = [{"query": row["query"], "pos": [row["positive"]], "neg": row["negatives"]} for row in rows]
    scored = [{"sentence1": row["query"], "sentence2": row["positive"], "score": at % 2} for at, row in enumerate(rows)]
    texts = {"queries": "query", "documents": "positive"}
    files = {f"alignment_{side}": [{"text": row[key]} for row in rows] for side, key in texts.items()}
    for name, content in {"unsupervised": flag, "fine_tuning": flag, "sts": scored, **files}.items():
        write_gzipped(folder / f"{name}.jsonl.gz", content)


def write_gzipped(path: Path, rows: Iterable[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
