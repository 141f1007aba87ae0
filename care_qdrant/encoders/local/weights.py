"""Check saved weights before they are loaded: whole files, and every tensor that the model reads (extra ``ingest``).

transformers gives a tensor that a checkpoint lacks random values. So the loader is run first on the headers of the
files alone, on torch's meta device, which needs no memory: what it would miss is refused by name.
"""

import json
import logging
import math
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from zipfile import is_zipfile

import numpy as np
import numpy.typing as npt

from care_qdrant.encoders.local.architecture import native_folder
from care_qdrant.errors import AlteredModel, IncompleteModel, ModelError, counted, needs_extra

if TYPE_CHECKING:
    from transformers import PretrainedConfig

logger = logging.getLogger(__name__)

INDEX = "model.safetensors.index.json"
INT8 = "int8.safetensors"
"""File with 8-bit weights in the place of ``model.safetensors``: a matrix as int8, and ``NAME.scale`` with a factor for
each of its rows. Other loaders do not know the name: they refuse the folder instead of reading levels as weights."""
SCALE = ".scale"
"""Suffix of the name of a matrix's factors."""
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
CHECK_FILE = "check_vectors.json"
"""File of reference vectors next to an adapter; without them another base of the same shape passes for its own."""
_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8}
_BITS |= {"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "U16": 16, "U32": 32, "U64": 64, "F4": 4, "C64": 64}
_FLOATS = ("F64", "F32", "F16", "BF16")
_INFINITY = {
    "F64": ("<u8", 0x7FF << 52),
    "F32": ("<u4", 0xFF << 23),
    "F16": ("<u2", 31 << 10),
    "BF16": ("<u2", 255 << 7),
}
"""Bits of infinity by the type of weights, as an unsigned integer: those of NaN are a larger one, but for the sign."""
_PIECE_BYTES = 1 << 26
_PLAIN_STARTS = (True, False, "gaussian", "orthogonal")
"""Initialisations of LoRA that leave the base as it is; the others change it, and peft does not store that."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor, as the header of its file describes it."""

    file: Path
    dtype: str
    """Type of its elements, as safetensors names it."""
    shape: tuple[int, ...]


def read_json(path: Path) -> Any:
    """Return the content of a JSON file of a saved model."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise IncompleteModel(f"{path} is missing") from error
    except OSError as error:
        raise IncompleteModel(f"{path} cannot be read ({error})") from error
    except (ValueError, RecursionError) as error:
        raise AlteredModel(f"{path} is not JSON ({error})") from error


@contextmanager
def settings_of(folder: Path) -> Iterator[None]:
    """Raise `ModelError` where the block finds a setting of a saved model missing, or of another type."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelError(
            f"{folder}: modules.json, or a config.json that it names, is not one of sentence-transformers ({error!r}); "
            "save the model again"
        ) from error


def reading_folder(folder: Path) -> Path:
    """Return the folder of the module that reads the texts of a saved model: its root, or such as ``0_Transformer``."""
    return folder / read_modules(folder)[0]["path"] if (folder / "modules.json").is_file() else folder


def read_modules(folder: Path) -> list[dict[str, Any]]:
    """Return ``modules.json`` of a saved model: the type of each module, and its path inside the folder."""
    modules: list[dict[str, Any]] = read_json(folder / "modules.json")
    for module in modules:
        inside(folder, module["path"])
    return modules


def inside(folder: Path, path: str) -> Path:
    """Return a path that a saved model names, below its folder.

    Raises:
        AlteredModel: It leads out of the folder, where files of the user would be moved, rewritten or copied.
    """
    if PurePath(path).is_absolute() or ".." in PurePath(path).parts:
        raise AlteredModel(f"{folder}: names the module folder {path!r}, which is outside; it is not a saved model")
    return folder / path


def kinds_of(modules: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the class names of modules, in order; a former name counts as the one of today."""
    names = (module["type"].rsplit(".", 1)[-1] for module in modules)
    return ["Router" if name == "Asym" else name for name in names]


def read_settings(folder: Path) -> dict[str, Any]:
    """Return ``config_sentence_transformers.json`` of a saved model, with its prompts by name; a model may have none.

    Raises:
        AlteredModel: It is not an object, or its prompts are not texts by name.
    """
    path = folder / "config_sentence_transformers.json"
    settings = read_json(path) if path.is_file() else {}
    prompts = settings.get("prompts", {}) if isinstance(settings, dict) else None
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str | None) for prompt in prompts.values()):
        raise AlteredModel(f"{path}: its prompts are not texts by name; save the model again")
    return {**settings, "prompts": {name: prompt or "" for name, prompt in prompts.items()}}


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file of a saved model."""
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def read_header(file: Path) -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file and where its data begin, in bytes."""
    if not file.is_file():
        raise IncompleteModel(f"{file} is missing")
    size = file.stat().st_size
    with file.open("rb") as stream:  # eight bytes of length, then JSON: no library on a serving machine
        start = 8 + int.from_bytes(stream.read(8), "little")
        if start > size:
            raise IncompleteModel(f"{file}: is cut off, or no safetensors file ({size} bytes); copy it again")
        try:
            header = json.loads(stream.read(start - 8))
            entries = [entry for name, entry in header.items() if name != "__metadata__"]
            ends = [entry["data_offsets"][1] for entry in entries]
            lengths = [end - entry["data_offsets"][0] for end, entry in zip(ends, entries, strict=True)]
            expected = [math.prod(entry["shape"]) * _BITS[entry["dtype"]] // 8 for entry in entries]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{file}: is not a safetensors file that this version reads ({error!r})") from error
    if size != start + max(ends, default=0) or sum(lengths) != max(ends, default=0) or lengths != expected:
        raise IncompleteModel(
            f"{file}: is cut off or altered ({size} bytes instead of {start + max(ends, default=0)}); copy it again"
        )
    return header, start


def read_matrix(file: Path, name: str) -> npt.NDArray[np.floating]:
    """Return a matrix of floats of a safetensors file, without any library."""
    header, start = read_header(file)
    entry = header[name]
    kind, (begin, end) = np.dtype(_INFINITY[entry["dtype"]][0]), entry["data_offsets"]
    bits = np.fromfile(file, kind, (end - begin) // kind.itemsize, offset=start + begin)
    if entry["dtype"] == "BF16":
        bits = bits.astype("<u4") << 16
    return np.asarray(bits.view(f"<f{bits.itemsize}").reshape(entry["shape"]))


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model, in the order of its index."""
    whole, index = folder / "model.safetensors", folder / INDEX
    if not index.is_file():
        return [_require(whole)]
    if whole.is_file():
        raise ModelError(f"{folder}: has {whole.name} and {index.name}, which may differ; remove the older one")
    names: Iterable[str] = read_json(index)["weight_map"].values()
    return [_require(folder / name) for name in dict.fromkeys(names)]


def read_tensors(files: Iterable[Path]) -> dict[str, Tensor]:
    """Return the file, dtype and shape of each tensor, from the headers of a model's files."""
    tensors: dict[str, Tensor] = {}
    for file in files:
        for name, (dtype, shape) in _entries(file):
            if name in tensors:
                raise ModelError(f"{file}: holds {name!r} a second time; save the model again")
            tensors[name] = Tensor(file, dtype, shape)
    return tensors


def check_model(folder: Path) -> None:
    """Check the weights of a saved sentence-transformers or transformers model, all modules, without loading them.

    Where transformers is not installed (a serving machine), only that each file is whole, and holds numbers.
    """
    from importlib.util import find_spec

    if find_spec("transformers") is None:
        _check_files(folder)
    else:
        with settings_of(folder), readable_model(folder):
            pass
    for file in sorted(folder.rglob("*.safetensors")):
        _require_numbers(file)


@contextmanager
def readable_model(folder: str | Path) -> Iterator[Path]:
    """Yield a folder that transformers reads whole and without remote code: the given one, or a temporary copy.

    Args:
        folder: A transformers or sentence-transformers model; one without ``config.json`` has no transformer to check.

    Yields:
        The folder to load within the block.

    Raises:
        IncompleteModel: A file is missing or cut off, or a tensor is missing.
        ModelError: The weights do not fit the model, or need remote code.
    """
    folder = Path(folder)
    _check_files(folder)
    for file in sorted(folder.rglob("pytorch_model*.bin")):
        deque(_entries(file), maxlen=0)
    if (folder / INT8).is_file():
        with TemporaryDirectory(prefix="care-floats-") as copy:
            _write_floats(folder, Path(copy))
            with readable_model(copy) as readable:
                yield readable
        return
    with native_folder(folder) as native:
        if (folder / ADAPTER_CONFIG).is_file():
            check_adapter(folder, _base_of(folder))
            yield native
        elif not (folder / "config.json").is_file():
            with _readable_modules(folder) as readable:
                yield readable
        else:
            _check_transformer(native, folder)
            yield native


@contextmanager
def _readable_modules(folder: Path) -> Iterator[Path]:
    """Yield a model whose transformers have their own folders, such as ``0_Transformer``, after checking each."""
    with ExitStack() as stack:
        checked = {
            path.parent: stack.enter_context(readable_model(path.parent))
            for path in sorted(folder.glob("*/config.json"))
            if "model_type" in read_json(path)
        }
        changed = {inner: readable for inner, readable in checked.items() if readable != inner}
        if not changed:
            yield folder
            return
        copy = Path(stack.enter_context(TemporaryDirectory(prefix="care-readable-")))
        shutil.copytree(
            folder, copy, ignore=lambda at, names: [n for n in names if Path(at, n) in changed], dirs_exist_ok=True
        )
        for inner, readable in changed.items():
            shutil.copytree(readable, copy / inner.name)
        yield copy


def _check_files(folder: Path) -> None:
    """Check that the settings are readable, and that the files of all modules are whole."""
    read_settings(folder)
    for file in sorted(folder.rglob("*.safetensors")):
        read_header(file)


def _require_numbers(file: Path) -> None:
    """Refuse a safetensors file with NaN: a vector may be finite all the same, and is then wrong."""
    header, start = read_header(file)
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in _INFINITY:
            continue
        kind, infinity = _INFINITY[entry["dtype"]]
        begin, end = entry["data_offsets"]
        for at in range(begin, end, _PIECE_BYTES):
            bits = np.fromfile(file, kind, min(_PIECE_BYTES, end - at) // np.dtype(kind).itemsize, offset=start + at)
            if (bits & np.iinfo(kind).max // 2 > infinity).any():
                raise ModelError(f"{file}: {name!r} holds weights that are not numbers (NaN); copy it again")


def check_adapter(adapter: Path, base: Path) -> None:
    """Check that a LoRA adapter has every layer that it says, of its base's shapes, and left that base as it was.

    Only `encoders.references.check_adapter_vectors` can tell whether it was trained on this base; without vectors to
    check, a warning is logged.
    """
    with needs_extra("ingest", "an adapter"):
        from peft import LoraConfig, PeftConfig, inject_adapter_in_model
    import torch
    from transformers import AutoModel

    read_tensors([_require(adapter / ADAPTER_WEIGHTS)])
    if any((adapter / name).is_file() for name in ("model.safetensors", INDEX)):
        raise ModelError(f"{adapter}: holds an adapter and whole weights; remove the one that is not meant")
    settings = read_json(adapter / ADAPTER_CONFIG)
    start = settings.get("init_lora_weights", True)
    if start not in _PLAIN_STARTS:
        raise ModelError(
            f"{adapter}: its training began with init_lora_weights = {start!r}, which changes the weights of the base "
            "and does not save them; convert it with peft (path_initial_model_for_weight_conversion), or merge it there"
        )
    with readable_model(base) as native:
        config = _config(native, base)
    with _silent(), torch.device("meta"):
        model = AutoModel.from_config(config)  # type: ignore[no-untyped-call]  # untyped in transformers
        lora = PeftConfig.from_pretrained(str(adapter))
        if not isinstance(lora, LoraConfig):
            raise ModelError(f"{adapter}: is an adapter of the kind {lora.peft_type}, expected LORA")
        lora.init_lora_weights = False
        try:
            adapted = inject_adapter_in_model(lora, model, low_cpu_mem_usage=True)
        except ValueError as error:
            raise ModelError(f"{adapter}: does not fit its base {base}: {error}") from error
    expected = {
        adapter_name(name): tuple(parameter.shape) for name, parameter in adapted.named_parameters() if ".lora_" in name
    }
    stored = {adapter_name(name): entry.shape for name, entry in read_tensors([adapter / ADAPTER_WEIGHTS]).items()}
    if missing := sorted(expected.keys() - stored.keys()):
        raise IncompleteModel(
            f"{adapter}: lacks {len(missing)} of {len(expected)} tensors that {ADAPTER_CONFIG} says, as {missing[0]!r}"
        )
    if more := sorted(stored.keys() - expected.keys()):
        raise ModelError(f"{adapter}: adapts {more[0]!r}, which {base} does not have; give its own base")
    if other := sorted(name for name in expected if expected[name] != stored[name]):
        raise ModelError(
            f"{adapter}: {other[0]!r} has the shape {stored[other[0]]}, but {base} needs {expected[other[0]]}; "
            "give its own base"
        )
    if not (adapter / CHECK_FILE).is_file():
        said = "not checked: that %s was trained on %s: another base of the same shape cannot be told from it; "
        logger.warning(said + "score the model before you use it", adapter, base)


def adapter_name(name: str) -> str:
    """Return a tensor's name without the prefixes that adapters and models with a head add."""
    return name.removeprefix("base_model.model.").removeprefix("model.").replace(".default.", ".")


def _base_of(adapter: Path) -> Path:
    """Return the folder of the base that an adapter names: a folder, or a model in the local cache."""
    settings = read_json(adapter / ADAPTER_CONFIG)
    name = str(settings.get("base_model_name_or_path") or "")
    if name and Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=settings.get("revision"), local_files_only=True))
    except Exception as error:  # many kinds, which all mean that it is not here
        raise ModelError(
            f"{adapter}: its base {name!r} (base_model_name_or_path in {ADAPTER_CONFIG}) is not on this machine"
        ) from error


def _write_floats(source: Path, folder: Path) -> None:
    """Copy a model with weights of 8 bits as one in float32."""
    from safetensors.torch import load_file, save_file

    if (source / "model.safetensors").is_file():
        raise ModelError(f"{source}: has {INT8} and model.safetensors, which may differ; remove the one not meant")
    stored = load_file(source / INT8)
    names = [name for name in stored if not name.endswith(SCALE)]
    try:
        floats = {
            name: stored[name] * stored[name + SCALE]
            if stored[name].ndim == 2 and name + SCALE in stored
            else stored[name]
            for name in names
        }
    except RuntimeError as error:  # shapes that do not fit
        raise ModelError(f"{source / INT8}: a matrix and its factors do not fit ({_first_line(error)})") from error
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(INT8, "*.onnx"), dirs_exist_ok=True)
    save_file(floats, folder / "model.safetensors", metadata={"format": "pt"})


def _check_transformer(native: Path, folder: Path) -> None:
    """Run transformers' loader on the headers of the files."""
    with needs_extra("ingest", "this encoder"):
        import torch
        from sentence_transformers.base.modules import Transformer
        from transformers import AutoModel
    config = _config(native, folder)
    pickled = sorted(native.glob("pytorch_model*.bin"))
    files = pickled if pickled and not list(native.glob("model*.safetensors*")) else weight_files(native)
    tensors = read_tensors(files)
    if getattr(config, "quantization_config", None):
        logger.warning("%s: its weights are quantised, so their names could not be checked", folder)
        return
    kinds = {"F64": torch.float64, "F16": torch.float16, "BF16": torch.bfloat16}
    stand_ins = {
        name: torch.empty(entry.shape, dtype=kinds.get(entry.dtype, torch.float32), device="meta")
        for name, entry in tensors.items()
    }
    try:
        with _silent():
            # Of some pairs sentence-transformers loads the encoder alone (T5, M2M100), of others the decoder as well.
            options: dict[str, Any] = {
                "state_dict": stand_ins,
                "device_map": "meta",
                "output_loading_info": True,
                "ignore_mismatched_sizes": True,
            }
            loaded = Transformer.__new__(Transformer)._load_encoder_only_model(None, config, **options)
            if loaded is None:
                with torch.device("meta"):
                    kind = type(AutoModel.from_config(config))  # type: ignore[no-untyped-call]  # untyped in transformers
                loaded = kind.from_pretrained(None, config=config, **options)
            model, loading = loaded
    except (ValueError, RuntimeError, KeyError) as error:
        raise ModelError(f"{folder}: its weights do not fit its config.json ({_first_line(error)})") from error
    kind = type(model)
    missing = sorted(name for name in loading["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise IncompleteModel(
            f"{folder}: lacks {len(missing)} of the {len(model.state_dict())} tensors of {kind.__name__}, as "
            f"{missing[0]!r}, which would be random (its files hold names as {min(tensors)!r}); copy it again, or save "
            "it again, outside of any wrapper such as DistributedDataParallel and torch.compile"
        )
    if loading["mismatched_keys"]:
        name, saved, expected = min(loading["mismatched_keys"])
        raise ModelError(
            f"{folder}: {name!r} has the shape {tuple(saved)}, but config.json needs {tuple(expected)}; "
            "one of the two is of another model"
        )
    parts = {name.split(".")[0] for name in model.state_dict()} - {"pooler", "decoder"}
    own = f"{kind.base_model_prefix}."
    more = sorted(name for name in loading["unexpected_keys"] if name.removeprefix(own).split(".")[0] in parts)
    if more:
        raise ModelError(
            f"{folder}: holds {more[0]!r} and {counted(len(more) - 1, 'other tensor')} that {kind.__name__} does not "
            "read with this config.json; it is of another model, an adapter that was not merged, or quantised"
        )
    for name, entry in tensors.items():
        if entry.dtype not in _FLOATS and name.endswith(".weight"):
            raise ModelError(f"{folder}: {name!r} is stored as {entry.dtype}; give weights in half precision")


def _config(native: Path, folder: Path) -> "PretrainedConfig":
    from transformers import AutoConfig

    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(native, local_files_only=True)
        return config
    except Exception as error:  # transformers' checks of single values raise errors of their own
        raise ModelError(
            f"{folder}: cannot be loaded without running code from the hub ({_first_line(error)})"
        ) from error


def _entries(file: Path) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    if file.suffix == ".safetensors":
        for name, entry in read_header(file)[0].items():
            if name != "__metadata__":
                yield name, (entry["dtype"], tuple(entry["shape"]))
        return
    import torch

    try:
        content: Mapping[str, Any] = torch.load(file, map_location="meta", weights_only=True, mmap=is_zipfile(file))
    except Exception as error:  # a zip file's errors, a pickle's errors, torch's own
        raise IncompleteModel(f"{file}: is cut off, or holds more than tensors ({_first_line(error)})") from error
    names = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    for name, tensor in content.items():
        yield name, (names.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape))


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing progress bars: only the running program draws them."""
    from transformers.utils import logging as theirs

    was_enabled = theirs.is_progress_bar_enabled()
    theirs.disable_progress_bar()  # type: ignore[no-untyped-call]  # untyped in transformers
    try:
        yield
    finally:
        if was_enabled:
            theirs.enable_progress_bar()  # type: ignore[no-untyped-call]  # as above


@contextmanager
def _silent() -> Iterator[None]:
    """Silence transformers' warnings about missing tensors: the check refuses them with its own message."""
    from transformers.utils import logging as theirs

    level = theirs.get_verbosity()
    theirs.set_verbosity_error()  # type: ignore[no-untyped-call]  # untyped in transformers
    try:
        with no_progress_bars():
            yield
    finally:
        theirs.set_verbosity(level)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _require(path: Path) -> Path:
    if not path.is_file():
        raise IncompleteModel(f"{path} is missing; only safetensors files are read")
    return path
