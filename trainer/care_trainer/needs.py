"""The requirements of a run, checked before its first step and before torch is imported, in one list of problems."""

import importlib.util
import os
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from care_qdrant.console.outputs import require_own
from care_qdrant.destinations import require_writable
from care_qdrant.encoders.batching import read_tokenizer
from care_qdrant.encoders.local.weights import read_header, read_json, settings_of
from care_qdrant.errors import CareError, InputError, ModelError
from care_qdrant.model.card import CARD_FILE
from care_qdrant.model.folder import require_destination
from care_qdrant.model.hub import BUILT_IN, find_folder
from care_trainer.config import Data, Run, Side, Stage, Tower, stage_name
from care_trainer.config.load import refusal
from care_trainer.config.run import BASE, COLLECTION, ROWS
from care_trainer.config.stages import Align, PairStage, Prune
from care_trainer.data.read import RETRIEVAL_KEYS, existing, pairs_in, read_rows, retrieval_rows, texts_in

RUN_FILE = "run.json"
"""Name of the file with the resolved configuration of a run: a folder that has it was written by a run."""
STAGE_FILE = "stage.json"
"""Name of the file that a stage writes last: a folder that has it is finished."""
_WRITTEN = re.compile(rb'\{\s*"name": ".*",\s*"output": ')
HEAD_ROWS = 1_000
"""Rows that are read from the start of each file before the first step."""
HUB_SECONDS = 5
"""Longest wait for the hub to say whether it has a model."""
_TOKENIZERS = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)


def require_needs(run: Run, where: str, *, weights: bool = True) -> None:
    """Refuse a run that would fail later for something missing, and list everything that is missing.

    Args:
        run: The run.
        where: The name of its configuration, for the message.
        weights: Whether base models need weight files; a rehearsal gives random weights to one without.
    """
    if problems := list(dict.fromkeys(missing(run, weights=weights))):
        raise refusal(where, problems)


def missing(run: Run, *, weights: bool = True) -> Iterator[str]:
    """Yield the unmet requirements of a run, one line each."""
    yield from _data_problems(run)
    if run.evaluation is not None:
        yield from _retrieval_problems(Path(run.data_root) / run.evaluation.retrieval)
    for side, tower in (("query", run.query), ("document", run.document)):
        if tower.base is not None and (tower.lora is not None or not (Path(run.output) / BASE / STAGE_FILE).exists()):
            yield from _base_problems(run, side, tower, weights)  # type: ignore[arg-type]  # a Literal
        if tower.quantization is not None and importlib.util.find_spec("bitsandbytes") is None:
            yield f"{side}.quantization: needs bitsandbytes: pip install bitsandbytes"
    for tracker in run.report_to:
        if importlib.util.find_spec(tracker) is None:
            yield f"report_to: {tracker} is not installed: pip install {tracker}; or leave it out"
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    for stage in run.stage:
        yield from _refused(stage.rows_of_process, processes)
    yield from _refused(require_output, run)
    yield from _refused(require_destination, Path(run.output) / run.name)
    if run.teacher_cache is not None:
        yield from _refused(require_writable, Path(run.teacher_cache))


def require_output(run: Run) -> None:
    """Refuse an output folder that cannot be written, or whose folders of the same names are not of a run.

    A resumed run removes the folders of what is not finished.
    """
    output = Path(run.output)
    require_own(output, RUN_FILE, _WRITTEN, ())
    if (output / RUN_FILE).is_file() or (output / BASE / STAGE_FILE).is_file():  # earlier versions wrote no RUN_FILE
        return
    names = [BASE, *map(stage_name, run.stage)]
    if not (output / ROWS).is_symlink():  # a rehearsal's, which is removed alone and not through the link
        names.append(ROWS)
    for name in names:
        if (output / name).is_dir() and any((output / name).iterdir()):
            raise InputError(
                f"{output / name}: already exists and is not of a training run; move it, or give another output"
            )


def holds_pairs(data: Data, root: Path) -> bool:
    """Return whether the first rows of all files of a data set are pairs, and not single texts."""
    return not any(list(_refused(_read_pairs, root / name, data)) for name in data.files)


def probe_data(run: Run) -> Data:
    """Return the data set that an export is tested on: the one that is named, or the last stage's, of pairs if any."""
    names = [stage.data for stage in run.stage if _kind(stage) == "pairs"] or [
        stage.data for stage in run.stage if stage.data
    ]
    return run.data[run.export.probe or names[-1]]


def _refused(check: Callable[..., object], *arguments: object) -> Iterator[str]:
    """Yield why a check refuses its arguments, if it does."""
    try:
        check(*arguments)
    except (CareError, OSError) as error:
        yield str(error)


def _kind(stage: Stage) -> str:
    """Return whether a stage reads ``pairs``, or ``texts``."""
    if isinstance(stage, PairStage) or (isinstance(stage, Align) and stage.pairs):
        return "pairs"
    return "texts"


def _data_problems(run: Run) -> Iterator[str]:
    """Yield the files that are missing, and rows of their beginnings that a stage cannot read."""
    root = Path(run.data_root)
    read: dict[str, Callable[[Path, Data], object]] = {"pairs": _read_pairs, "texts": _read_texts}
    used = [(_kind(stage), stage.data) for stage in run.stage if stage.data]
    used += [("texts", run.vocabulary.data)] if run.vocabulary else []
    used += [("files", run.export.probe)] if run.export.probe else []
    for kind, name in used:
        if name == COLLECTION and run.document.collection is not None:
            continue  # it is read first, and its file is of this run
        for file in run.data[name].files:
            yield from _refused(existing, root / file)
            if kind in read and (root / file).is_file():
                yield from _refused(read[kind], root / file, run.data[name])


def _read_pairs(path: Path, data: Data) -> None:
    for _ in pairs_in(islice(read_rows(path), HEAD_ROWS), data):
        pass


def _read_texts(path: Path, data: Data) -> None:
    for _ in texts_in(islice(read_rows(path), HEAD_ROWS), data, ("query", "document"), joined=False):
        pass


def _retrieval_problems(folder: Path) -> Iterator[str]:
    for name in RETRIEVAL_KEYS:
        yield from _refused(_read_retrieval, folder, name)


def _read_retrieval(folder: Path, name: str) -> None:
    for _ in islice(retrieval_rows(folder, name), HEAD_ROWS):
        pass


def _base_problems(run: Run, side: Side, tower: Tower, weights: bool) -> Iterator[str]:
    """Yield the problems of a base model, damaged files among them."""
    try:
        with settings_of(Path(str(tower.base))):
            yield from _problems_of_base(run, side, tower, weights)
    except CareError as error:
        yield f"{side}.base {error}"


def _problems_of_base(run: Run, side: Side, tower: Tower, weights: bool) -> Iterator[str]:
    where = f"{side}.base {tower.base}"
    model = _model_folder(str(tower.base), tower.revision)
    if model is None:
        return
    folder = _own_folder(model, side)
    if not folder.is_dir():
        yield f"{where}: is a CARE folder without its {side} encoder; give another base"
        return
    config, modules = (_json(folder / name) for name in ("config.json", "modules.json"))
    files = sorted(folder.rglob("*.safetensors"))
    if weights and not files:
        yield f"{where}: has no weights (model.safetensors)"
    for file in files:
        yield from _refused(read_header, file)
    if tower.pooling == "own" and modules is None:
        yield f"{where}: has no modules.json, so it has no pooling of its own; set {side}.pooling"
    kinds = [module["type"].rsplit(".", 1)[-1] for module in modules or ()]
    if tower.pooling == "own" and kinds[:1] not in ([], ["Transformer"], ["StaticEmbedding"]):
        yield f"{where}: begins with a module {kinds[0]}; expected a Transformer or a StaticEmbedding"
    if "StaticEmbedding" in kinds:
        if side == "document":
            yield f"{where}: is a table of token vectors, without layers; expected a transformer"
    elif config is None:
        yield f"{where}: has no config.json; expected a transformers or sentence-transformers model"
    else:
        yield from _width_problems(run, side, tower, config, modules)
        yield from _tokenizer_problems(where, side, tower, folder)


def _width_problems(
    run: Run, side: Side, tower: Tower, config: Mapping[str, Any], modules: list[Any] | None
) -> Iterator[str]:
    has_dense = tower.pooling == "own" and any("Dense" in module["type"] for module in modules or ())
    width = None if has_dense else config.get("hidden_size")
    if width is not None and side == "query" and width != run.dim and not tower.projection:
        yield (
            f"query base {tower.base}: gives {width} dimensions, but dim is {run.dim}; set dim = {width}, or "
            "query.projection = true"
        )
    if width is not None and side == "document" and width < run.dim:
        yield (
            f"document base {tower.base}: gives {width} dimensions, fewer than dim = {run.dim}; use a larger base, or "
            f"set dim = {width}"
        )
    layers = config.get("num_hidden_layers")
    for stage in run.stage if side == "document" else ():
        if isinstance(stage, Prune) and layers is not None and layers <= stage.layers:
            yield f"stage.{stage_name(stage)}.layers: the document encoder has {layers}; expected fewer to keep"


def _tokenizer_problems(where: str, side: Side, tower: Tower, folder: Path) -> Iterator[str]:
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        yield f"{where}: has no tokenizer (tokenizer.json)"
    if tower.pooling != "lasttoken" or not (folder / "tokenizer.json").is_file():
        return
    told = (_json(folder / "tokenizer_config.json") or {}).get("eos_token")
    marker = tower.eos or (told["content"] if isinstance(told, dict) else told)
    if marker is None or read_tokenizer(folder).token_to_id(marker) is None:
        yield f"{where}: its tokenizer does not know the marker {marker!r}; set {side}.eos to one of its own"


def _model_folder(base: str, revision: str | None) -> Path | None:
    """Return the folder of a model, here or in the hub's cache; None where the run is to download it.

    Raises:
        CareError: It is neither, and the hub does not have it or cannot be reached.
    """
    if base == BUILT_IN or Path(base).is_dir() or base.startswith((".", "/", "~")) or base.count("/") > 1:
        return find_folder(base)
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        return Path(snapshot_download(base, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        pass
    try:
        HfApi().model_info(base, revision=revision, timeout=HUB_SECONDS)
    except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, OSError) as error:
        reason = "offline, since HF_HUB_OFFLINE is set" if isinstance(error, OfflineModeIsEnabled) else error
        raise ModelError(f"{base}: is not a folder, and is not available from the hub ({reason})") from error
    return None


def _own_folder(folder: Path, side: Side) -> Path:
    return folder / side if (folder / CARD_FILE).is_file() else folder


def _json(path: Path) -> Any:
    return read_json(path) if path.is_file() else None
