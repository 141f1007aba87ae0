"""Ingest the sample corpus with the built-in model and answer a few questions, all in one process and offline.

The document encoder runs once, for the corpus; the questions are answered by the small query encoder alone.
"""

import tempfile
from pathlib import Path

from care_qdrant import CareModel, IngestSettings, Retriever, ingest, open_client

SAMPLE = Path(__file__).parent / "sample" / "corpus.jsonl"
QUESTIONS = ["心梗发作的时候胸口疼是什么样的", "收缩压 140 mmHg 算高血压吗", "HbA1c 6.5% 是糖尿病吗"]


def main() -> None:
    model, settings = CareModel.load("built-in"), IngestSettings(sparse=True)
    with tempfile.TemporaryDirectory() as folder, open_client(path=Path(folder)) as client:
        report = ingest(SAMPLE, model, client, "sample", settings=settings)
        print(f"{report.documents} documents in {report.points} points, {report.documents_per_second:.0f} a second")

        again = ingest(SAMPLE, model, client, "sample", settings=settings)
        print(f"once more: {again.encoded} encoded, {again.unchanged} unchanged\n")

        retriever = Retriever(client, "sample", model)
        for question, hits in zip(QUESTIONS, retriever.search(QUESTIONS, top_k=3), strict=True):
            print(question)
            for hit in hits:
                print(f"  {hit.score:.3f}  {hit.title}  [{hit.metadata['department']}]  {hit.text[:40]}…")


if __name__ == "__main__":
    main()
