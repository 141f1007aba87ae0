"""Reference scores of the same models by mteb's own runner, without Qdrant and without code of this project."""

import logging
import warnings
from collections.abc import Sequence

import mteb
from mteb.models.model_meta import ModelMeta
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper

from care_benchmarks.evaluation import BATCH_TEXTS, Outcome
from care_benchmarks.results import ReferenceScore
from care_benchmarks.search import prompts_by_type, scoring_function
from care_benchmarks.tasks import LoadedTask
from care_qdrant.encoders.torch import load_sentence_transformer
from care_qdrant.model.hub import fetch_document_side

logger = logging.getLogger(__name__)


def measure_reference(outcomes: Sequence[Outcome], tasks: Sequence[LoadedTask]) -> list[ReferenceScore]:
    """Evaluate each dense system again with mteb alone, on the same loaded tasks.

    A pair is loaded as the stock sentence-transformers Router that its folder is, on torch in float32, so a difference
    shows what an int8 query encoder changes.
    """
    found = []
    for outcome in outcomes:
        system = outcome.search.system
        if system.mode != "dense":
            continue
        logger.info("%s: reference run by mteb", system.name)
        model = load_sentence_transformer(fetch_document_side(system.source), None)
        with warnings.catch_warnings():
            # mteb asks sentence-transformers for the dimension by a deprecated name.
            warnings.simplefilter("ignore", FutureWarning)
            # That it uses the prompts that it is given.
            warnings.filterwarnings("ignore", "Model prompts specified", UserWarning)
            wrapper = SentenceTransformerEncoderWrapper(model, model_prompts=prompts_by_type(system.model) or None)
        wrapper.mteb_model_meta = ModelMeta.create_empty(
            overwrites={"name": "mteb/reference", "similarity_fn_name": scoring_function(system.model)}
        )
        theirs = mteb.evaluate(
            wrapper,
            [task.task for task in tasks],
            cache=None,
            co2_tracker=False,
            show_progress_bar=False,
            encode_kwargs={"batch_size": BATCH_TEXTS, "show_progress_bar": False},
        )
        scores = {result.task_name: result.get_score() for result in theirs.task_results}
        for score in outcome.scores:
            found.append(ReferenceScore(system.name, score.task, score.value, scores[score.task]))
    return found
