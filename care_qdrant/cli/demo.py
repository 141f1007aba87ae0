"""``care demo``: a search page over the sample corpus."""

import logging
import webbrowser
from pathlib import Path

import click

from care_qdrant.console.groups import CONTEXT, Command
from care_qdrant.console.text import echo

SAMPLES = (
    Path(__file__).parents[1] / "sample" / "corpus.jsonl",  # in a wheel
    Path(__file__).parents[2] / "examples" / "sample" / "corpus.jsonl",  # in a clone
)

EXAMPLES = {
    "心跳一会儿快一会儿慢毫无规律，是不是房颤，危险在哪里": (
        "My heart beats fast and slow without any rhythm. Is it atrial fibrillation, and what is the danger?"
    ),
    "My dad has crushing chest pain, what should we do until the ambulance comes?": (
        "The sample has English texts as well."
    ),
    "今年世界杯谁赢了": "Who won the World Cup this year? (No text here answers this.)",
}
"""Questions that the page offers, with an English gloss.

The first one is the first judged question of the sample that shows hybrid search at its best: a good match, the best
document first, and more relevant documents among the first three hits than dense search or BM25 has
(tests/test_demo.py). The last one has no answer in the sample.
"""


@click.command(cls=Command, name="demo", context_settings=CONTEXT)
def command() -> None:
    """Put the 369 sample documents into a collection, and open the search page on it.

    It needs no server and no GPU. The database is in ./care-demo; the second start encodes nothing. The page is at
    port 8080, or at another free port. Documents that you mark as relevant there are kept in ./care-demo/labels;
    nothing is written before you mark one. Ctrl-C ends it.

    \b
    Example:
      care demo
    """
    from care_qdrant.errors import needs_extra
    from care_qdrant.ingestion.ingest import ingest
    from care_qdrant.ingestion.settings import IngestSettings
    from care_qdrant.model.care_model import CareModel
    from care_qdrant.progress import progress_bar
    from care_qdrant.qdrant.connection import open_client
    from care_qdrant.serve.settings import ServeSettings
    from care_qdrant.serve.supervisor import free_port, serve

    with needs_extra("serve", "care demo"):
        import uvicorn  # noqa: F401
    path = Path("care-demo")
    corpus = next(file for file in SAMPLES if file.is_file())
    with open_client(path=path) as client, progress_bar("sample", "stored") as show:
        ingest(corpus, CareModel.load(), client, "sample", settings=IngestSettings(sparse=True), on_progress=show)

    def announce(address: str) -> None:
        echo(f"the search page is at {address} (Ctrl-C ends it)", err=True)
        webbrowser.open(address)

    settings = ServeSettings(
        load_models=lambda: [CareModel.load()],
        open_qdrant=lambda: open_client(path=path),
        collections=("sample",),
        examples=EXAMPLES,
        record=path / "labels",
        record_days=0,
        port=free_port(8080),
    )
    logging.getLogger("care_qdrant.serve.access").setLevel(logging.WARNING)
    serve(settings, announce)
