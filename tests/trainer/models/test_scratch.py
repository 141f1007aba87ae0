from care_trainer.config import Vocabulary
from care_trainer.models.scratch import MASK, train_tokenizer

from tests.trainer.tiny_run import pairs

TEXTS = [text for row in pairs() for text in (row["query"], row["positive"])] + ["Vitamin B12 100mg", "vitamine b6"]


def test_a_tokenizer_trained_again_is_the_same_file() -> None:
    """These few texts are full of characters and pairs that are equally frequent."""
    vocabulary = Vocabulary(data="pairs", size=260, min_frequency=1)
    first = train_tokenizer(vocabulary, TEXTS)
    assert {train_tokenizer(vocabulary, TEXTS).to_str() for _ in range(5)} == {first.to_str()}
    encoding = first.encode(f"{TEXTS[0]}{MASK}")
    assert encoding.tokens[-1] == MASK and "[UNK]" not in encoding.tokens
    assert max(first.get_vocab().values()) + 1 == first.get_vocab_size() <= 260
