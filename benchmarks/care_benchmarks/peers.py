"""The same models by mteb's own runner: no Qdrant, no code of ours between mteb and sentence-transformers."""

import logging
import warnings
from collections.abc import Sequence

import mteb
from mteb.abstasks import AbsTask
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper

from care_benchmarks.evaluation import BATCH_TEXTS, Outcome
from care_benchmarks.results import Peer
from care_qdrant.checkpoint.hub import fetch_document_side
from care_qdrant.encoders.torch import load_sentence_transformer

logger = logging.getLogger(__name__)


def measure_peers(outcomes: Sequence[Outcome], tasks: Sequence[AbsTask]) -> list[Peer]:
    """Run each dense contestant once more, by mteb alone, on the same loaded tasks.

    A pair is loaded as the stock sentence-transformers Router that its folder is, on torch in float32: what an ONNX
    query encoder in int8 changes shows as the difference.
    """
    found = []
    for outcome in outcomes:
        contestant = outcome.search.contestant
        if contestant.mode != "dense":
            continue
        logger.info("%s: once more, by mteb's own runner", contestant.name)
        model = load_sentence_transformer(fetch_document_side(contestant.source), None)
        with warnings.catch_warnings():
            # mteb asks sentence-transformers for the dimension by a name that is going away.
            warnings.simplefilter("ignore", FutureWarning)
            wrapper = SentenceTransformerEncoderWrapper(model)
        wrapper.mteb_model_meta = ModelMeta.create_empty(
            overwrites={"name": "mteb/peer", "similarity_fn_name": ScoringFunction.COSINE}
        )
        theirs = mteb.evaluate(
            wrapper,
            tasks,
            cache=None,
            co2_tracker=False,
            show_progress_bar=False,
            encode_kwargs={"batch_size": BATCH_TEXTS, "show_progress_bar": False},
        )
        scores = {result.task_name: result.get_score() for result in theirs.task_results}
        for score in outcome.scores:
            found.append(Peer(contestant.name, score.task, score.value, scores[score.task]))
    return found
