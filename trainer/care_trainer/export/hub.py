"""Uploads a CARE folder to a Hugging Face hub: private by default, in one commit or not at all."""

import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from care_qdrant.errors import InputError, TrainingError
from care_qdrant.model.folder import verify_checkpoint

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")

TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
"""HTTP statuses after which a request is repeated."""


def require_token() -> str:
    """Return the hub token of this machine, from ``HF_TOKEN`` or ``hf auth login``."""
    from huggingface_hub import get_token

    token = get_token()
    if not token:
        raise InputError("there is no hub token, so nothing was uploaded; set HF_TOKEN, or run: hf auth login")
    return token


def push(
    folder: Path, repository: str, *, private: bool = True, attempts: int = 5, first_wait_seconds: float = 1.0
) -> str:
    """Upload a CARE folder as one commit."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled

    api = HfApi(token=require_token(), library_name="care-qdrant")
    card = verify_checkpoint(folder)

    def retried(what: str, request: Callable[[], Answer]) -> Answer:
        return _retried(f"{repository}: {what}", request, attempts, first_wait_seconds)

    try:
        retried("the repository", lambda: api.create_repo(repository, private=private, exist_ok=True))
        if private and not retried("its visibility", lambda: api.model_info(repository)).private:
            raise InputError(f"{repository}: is public; pass --public to publish there, or give another repository")
        commit = retried(
            "the upload",
            lambda: api.upload_folder(
                repo_id=repository, folder_path=folder, commit_message=f"{card.name} {card.fingerprint[:12]}"
            ),
        )
    except HFValidationError as error:
        raise InputError(f"{repository}: is no repository name ({error}); expected organisation/model") from error
    except OfflineModeIsEnabled as error:
        raise InputError(f"{repository}: HF_HUB_OFFLINE is set, so nothing was uploaded; unset it") from error
    return str(commit.commit_url)


def _retried(what: str, request: Callable[[], Answer], attempts: int, wait_seconds: float) -> Answer:
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # a lazy export

    attempt = 1
    while True:
        try:
            return request()
        except (HfHubHTTPError, httpx.TransportError) as error:
            transient = not isinstance(error, HfHubHTTPError) or error.response.status_code in TRANSIENT
            if not transient or attempt == attempts:
                reason = str(error).strip().splitlines()[0]
                raise TrainingError(f"{what} failed after {attempt} attempt(s): {reason}") from error
        logger.warning("%s: attempt %d of %d failed", what, attempt, attempts)
        time.sleep(wait_seconds * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
        attempt += 1
