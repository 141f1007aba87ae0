"""The report of a training run, in words and as a picture."""

from dataclasses import replace
from pathlib import Path

from care_qdrant.console.reports import printed
from care_qdrant.errors import counted, needs_extra
from care_trainer.disk import write_json
from care_trainer.learn.graph import GraphSearch
from care_trainer.learn.labelled import LabelledQuality, rankings
from care_trainer.learn.outcome import LearnReport
from care_trainer.learn.quality import loss_warning
from care_trainer.learn.reading import Sample
from care_trainer.learn.settings import FOLDER


def write_report(folder: Path, report: LearnReport) -> None:
    """Write ``report.md``, ``report.json`` and, where matplotlib is installed, ``report.png`` into a CARE folder."""
    target = folder / FOLDER
    write_json(target / "report.json", printed(replace(report, examples=[])))
    examples = [f"- {example.question!r} (rank {example.rank:,})" for example in report.examples]
    shown = ["**Held-out questions that did worst**, with the rank of their document:", "\n".join(examples)]
    (target / "report.md").write_text(
        "\n\n".join([*paragraphs(report), *(shown if examples else [])]) + "\n", encoding="utf-8"
    )


def _left_out(sample: Sample) -> str:
    return f", and {sample.stand_ins:,} a vector of a learned encoder" if sample.stand_ins else ""


def paragraphs(report: LearnReport) -> list[str]:
    """Return the paragraphs of the report, which a user should read before using the query encoder."""
    held_out, sample, training = report.held_out, report.sample, report.training
    what = f"transformer of {counted(training.layers, 'layer')}" if training.layers else "table"
    lines = [
        f"# {report.contract.model}: a query encoder learned from collection {report.collection}",
        f"{sample.texts:,} texts of {sample.points:,} points (field {sample.text_field!r}) and their vectors "
        f"{report.vector_name or '(unnamed)'!r} of {report.contract.dim} dimensions; "
        f"{counted(sample.without_text, 'point', 'have')} no text, {sample.without_vector:,} no vector, "
        f"{sample.repeated:,} duplicate texts{_left_out(sample)}. "
        f"{counted(training.steps, 'step')} in {report.seconds:,.0f} s ({report.cpu_seconds:,.0f} CPU s); the "
        f"{what} of step {training.best_step:,} is "
        f"kept, with {training.vocabulary:,} tokens ({training.tokens})"
        + (", and trained once more with the held-out documents." if report.trained_again else "."),
        f"**Quality.** {held_out.queries:,} documents were held out. For one of its sentences or its title, a document "
        f"is the first of {held_out.candidates:,} in {held_out.recall_at_1:.0%} of the cases and among the first ten "
        f"in {held_out.recall_at_10:.0%} (mean reciprocal rank {held_out.mrr:.3f}). {_copies(report)}Real questions "
        "are harder than sentences of the text: on six collections (docs/evidence/learning.md) encoders kept 72% to "
        "113% of the old model's nDCG@10 on them, and held-out sentences did not predict how much. Judge with your own "
        "(--queries) before you switch.",
    ]
    if (warning := loss_warning(report.kept)) is not None:
        lines.insert(1, f"**Warning**: {warning}.")
    if report.weak:
        kinds = (
            f"{kind.name}: {kind.recall_at_10:.0%} of {kind.questions:,} (others {kind.others:.0%})"
            for kind in report.weak
        )
        lines.append(
            f"**Worst**, by the share whose document is among the first ten, are questions that are {'; '.join(kinds)}."
        )
    if report.agreement is not None:
        old = report.agreement
        lines.append(
            f"**Against the old model**, on {old.questions:,} questions that were not trained on: "
            f"{old.overlap_at_10:.0%} of its ten best documents are among the ten best here, nDCG@10 against its "
            f"ranking {old.ndcg_at_10:.3f}, mean cosine of the query vectors {old.mean_cosine:.3f}."
        )
    if report.labelled is not None:
        lines += _labelled(report.labelled)
    if report.new_documents is not None:
        new = report.new_documents
        lines.append(
            f"**New documents.** Before this update, {new.recall_at_10:.0%} of {new.queries:,} documents that the "
            f"earlier encoder had not seen were among the first ten for their own sentence or title."
        )
    lines.append(
        f"**Cost.** A query takes {report.query_microseconds:,.0f} µs on one core in batches of 32; the model is "
        f"{report.onnx_bytes / 1e6:,.1f} MB. No other model and no service is asked."
    )
    if report.graph is not None:
        lines.append(_graph(report.graph))
    if report.alpha is not None:
        lines.append(f"**With BM25**, hybrid searches weight the dense score by alpha = {report.alpha:.3f}.")
    lines.append(
        "**Not for** questions in a language that the texts are not in, "
        f"{'' if training.layers else 'meaning that depends on word order (negation, who did what to whom), '}"
        "very short words that the collection does not have, or documents: those still need the model that made the "
        "vectors."
    )
    lines.append(f"**Not registered**: {report.refused}." if not report.registered else "Registered for this vector.")
    return lines


def _copies(report: LearnReport) -> str:
    if report.near_copies is None:
        return (
            "More than half of the documents are near-copies of held-out ones, and were trained on: these figures are "
            "too good for other texts. "
        )
    if report.near_copies:
        return f"{report.near_copies:,} near-copies of held-out documents were left out of the measured training. "
    return ""


def _graph(graph: GraphSearch) -> str:
    by_width = {width.hnsw_ef: width for width in graph.widths}
    own = graph.widths[0]
    line = (
        f"**In the graph.** Of the first ten points of an exact search among {graph.points:,}, a search as wide as the "
        f"server makes it by default ({own.hnsw_ef}) finds {own.recall_at_10:.1%}, in {own.ms:.1f} ms a query"
    )
    if graph.hnsw_ef is None:
        return f"{line}; wider ones find at most one percent more."
    chosen = by_width[graph.hnsw_ef]
    return (
        f"{line}; with hnsw_ef {chosen.hnsw_ef}, which every search with this encoder uses unless told otherwise, "
        f"{chosen.recall_at_10:.1%} in {chosen.ms:.1f} ms."
    )


def _labelled(quality: LabelledQuality) -> list[str]:
    unknown = (
        f" {quality.unknown_ids:,} of the ids are not in the collection; they are left out, and "
        f"with them {counted(quality.left_out, 'question')} without others."
        if quality.unknown_ids
        else ""
    )
    rows = ["| search | nDCG@10 | recall@10 | MRR@10 |", "|---|---|---|---|"]
    for name, ranking in rankings(quality).items():
        measures = (ranking.ndcg_at_10, ranking.recall_at_10, ranking.mrr_at_10)
        figures = (f"{value.mean:.3f} ({value.low:.3f} to {value.high:.3f})" for value in measures)
        rows.append(f"| {name} | {' | '.join(figures)} |")
    return [
        f"**Your labelled questions**, {quality.questions:,} with {quality.relevant:,} relevant {quality.unit}, none "
        f"of them trained on, over the whole collection, with 95 % intervals.{unknown}",
        "\n".join(rows),
    ]


def plot(report: LearnReport, file: Path) -> None:
    """Draw loss and quality on held-out documents over the steps, and next to them that on labelled questions."""
    with needs_extra("learn", "the plot of the report"):
        from matplotlib.figure import Figure

    labelled = {} if report.labelled is None else rankings(report.labelled)
    figure = Figure(figsize=(11 if labelled else 7, 3.5), layout="constrained")
    axes, *others = figure.subplots(1, 2 if labelled else 1, squeeze=False)[0]
    for right in others:
        scores = [ranking.ndcg_at_10 for ranking in labelled.values()]
        means = [score.mean for score in scores]
        spread = [[score.mean - score.low for score in scores], [score.high - score.mean for score in scores]]
        right.bar(list(labelled), means, yerr=spread, color="tab:green", capsize=4)
        right.set(ylabel="nDCG@10, 95 % interval", ylim=(0, 1), title="labelled questions")
    steps = [row["step"] for row in report.history]
    axes.plot(steps, [row["score"] for row in report.history], color="tab:blue", label="mean reciprocal rank")
    axes.axvline(report.training.best_step, color="tab:blue", linestyle=":", label="kept step")
    axes.set(
        xlabel="step",
        ylabel="held-out documents",
        ylim=(0, 1),
        title=f"{report.contract.model}: {report.sample.texts:,} texts",
    )
    loss = axes.twinx()
    loss.plot(steps, [row["loss"] for row in report.history], color="tab:orange", label="loss")
    loss.set_ylabel("training loss")
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(file, dpi=120)
