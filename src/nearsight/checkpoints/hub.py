"""Models on the Hugging Face hub, fetched by name: `hf:owner/name`, or `hf:owner/name@revision`."""

import re
from pathlib import Path

PREFIX = "hf:"
WEIGHTS, DESCRIPTION, TIMM = "model.safetensors", "model.json", "config.json"
NAME = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
REVISION = re.compile(r"[\w./-]{1,200}")


def parse_repository(name: str) -> tuple[str, str | None]:
    """Owner and name of a repository, and the revision after an `@`.

    Raises:
        ValueError: It is no such name.

    Example:
        >>> parse_repository("hf:anna/flowers@v2")
        ('anna/flowers', 'v2')
    """
    repository, _, revision = name.removeprefix(PREFIX).partition("@")
    if not NAME.fullmatch(repository) or (revision and not REVISION.fullmatch(revision)):
        raise ValueError(f"{name!r} names no repository of the hub; write it like hf:owner/name or hf:owner/name@v1.")
    return repository, revision or None


def fetch_repository(name: str) -> Path:
    """The folder with a model of the hub; it is downloaded once and then taken from the hub's cache.

    Only the weights as safetensors and their description are fetched; nothing that could run.

    Raises:
        ValueError: There is no such repository, it has no such model, or it can't be reached.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    repository, revision = parse_repository(name)
    files: dict[str, Path] = {}
    try:
        for file in (WEIGHTS, DESCRIPTION, TIMM):
            if file == TIMM and DESCRIPTION in files:  # timm's own is for models that Nearsight did not write
                break
            try:
                files[file] = Path(hf_hub_download(repository, file, revision=revision))
            except EntryNotFoundError as error:
                if file == WEIGHTS and isinstance(error, LocalEntryNotFoundError):
                    raise
    except (RepositoryNotFoundError, RevisionNotFoundError):
        at = f" at {revision}" if revision else ""
        raise ValueError(
            f"The hub has no model {repository}{at}, or not for you; check the name, and `hf auth login` for your own."
        ) from None
    except LocalEntryNotFoundError:
        raise ValueError(
            f"{repository} is not in the hub's cache, and the hub can't be reached (or HF_HUB_OFFLINE is set); "
            "fetch it where there is a network."
        ) from None
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise ValueError(f"{repository} can't be fetched from the hub ({reason[0]}); try again later.") from None
    if WEIGHTS not in files:
        raise ValueError(f"{repository} has no {WEIGHTS}; only models in the safetensors format are opened.")
    return files[WEIGHTS].parent
