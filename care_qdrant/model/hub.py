"""Sources of a model: a folder, a model inside this package, or the Hugging Face hub."""

from pathlib import Path

from care_qdrant.errors import InputError, ModelError

BUILT_IN = "built-in"
"""Name of the model inside this package, which is used where none is given."""
_BUILT_IN_FOLDER = Path(__file__).parents[1] / "builtin"


def find_folder(source: str | Path, *, revision: str | None = None) -> Path:
    """Return the local folder of a model; from the hub, everything but the document encoder is downloaded.

    Args:
        source: A folder, ``built-in``, or a hub name, ``organisation/model``.
        revision: Branch, tag or commit on the hub.

    Raises:
        InputError: A revision of a folder was asked for, which has none.
        ModelError: The folder does not exist, or the model is not available on the hub.
    """
    folder = _BUILT_IN_FOLDER if source == BUILT_IN else Path(source)
    if revision is not None and folder.is_dir():
        raise InputError(f"{source}: is a folder, which has no revision {revision!r}; leave out --revision")
    if folder.is_dir():
        return folder
    replaced = folder.with_name(f".{folder.name}.replaced")
    if replaced.is_dir():
        raise ModelError(
            f"{source}: was being replaced when a process was killed; the whole former model is {replaced}: rename it, "
            "or write the new one again"
        )
    if isinstance(source, Path) or source.startswith((".", "/", "~")) or source.count("/") != 1:
        raise ModelError(f"{source}: there is no such folder (a hub name has the form organisation/model)")
    return _download(source, revision, ignore=["document/*", "document-adapter/*"])


def fetch_document_side(source: str | Path, *, revision: str | None = None) -> Path:
    """Return the folder that holds the document encoder, downloaded from the hub if necessary."""
    if source == BUILT_IN or Path(source).is_dir():
        return find_folder(source, revision=revision)
    return _download(str(source), revision, ignore=["document-adapter/*"])


def _download(name: str, revision: str | None, ignore: list[str]) -> Path:
    # Imported here: a model on this machine saves the quarter of a second.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, ignore_patterns=[*ignore, "*.bin", "*.h5", "*.msgpack"]))
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{name}: is not in the local cache, and the hub cannot be reached "
            "(offline, or HF_HUB_OFFLINE is set); give a folder, or run once with a connection"
        ) from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise ModelError(f"{name}: the hub does not give this model: {error}") from error
