"""Published weights: installed by a package, or downloaded, with a message that gives their size."""

from __future__ import annotations

import importlib.util
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlparse

import torch
from timm.models import get_pretrained_cfg

from vicinal.models.backbones import timm_name
from vicinal.models.initialization_table import INITIALIZATIONS
from vicinal.utils.console import log
from vicinal.utils.errors import InputError, import_extra, one_line

TIMEOUT = 10  # seconds in which a server must answer
HUB_FILES = ("model.safetensors", "pytorch_model.bin")
"""The files in which timm looks for the weights of a model on the Hugging Face Hub, in order of preference."""


class DownloadError(InputError):
    """Published weights could not be fetched; `place` says where to put a manual download."""

    def __init__(self, problem: str, place: str) -> None:
        super().__init__(f"{problem}; use pretrained=path/to/model.safetensors, pretrained=false, or {place}")
        self.problem, self.place = problem, place


def is_downloaded(name: str) -> bool:
    """Whether the published weights of a backbone are in the cache or installed, or there are none to download."""
    package = _package(name)
    if package is not None:
        return importlib.util.find_spec(package) is not None
    url = published_url(name)
    return not any(True for _ in _hub_files(name)) if url is None else _file_of(url).is_file()


def packaged_weights(name: str) -> Path | None:
    """The file of a backbone's published weights in the package that has them; None if no package has."""
    package = _package(name)
    if package is None:
        return None
    module = import_extra(package, "weights", f"backbone {name}: its published weights")
    folder = Path(str(module.__file__)).parent / "models"
    return next(folder.glob("*.pth"), folder)


def announce_download(name: str) -> None:
    """Say which weights of a backbone are downloaded, and their size, unless they are in the cache.

    The server is asked once, since the Hub's client tries again for most of a minute and torch.hub waits without limit.
    Whatever it answers, the download itself is tried.
    """
    url = published_url(name)
    if url is not None:
        return announce_url(url)
    if is_downloaded(name):
        return None
    try:
        size = _hub_size(name)
    except InputError as error:
        raise download_error(f"backbone {name}: its published weights", error) from error
    _announce(f"the weights of {name}", size, _cache())
    return None


def announce_url(url: str) -> None:
    """Say that a file is downloaded, and its size, unless it is in the cache of torch.hub."""
    if _file_of(url).is_file():
        return
    try:
        size = _url_size(url)
    except urllib.error.HTTPError:  # some servers do not answer this question, but the download
        size = None
    except Exception as error:  # networks fail in many ways
        raise download_error(url, error, url) from error
    _announce(url, size, _file_of(url).parent)


def download_error(what: str, error: Exception, url: str | None = None) -> DownloadError:
    """The error for published weights, from an address or the Hub, that could not be fetched and loaded."""
    hub = f"a cache that has them (HF_HOME; now {_cache()})"
    place = hub if url is None else f"put the file into {_file_of(url).parent}"
    return DownloadError(f"{what} could not be fetched and loaded ({one_line(error, 200)})", place)


def _announce(what: str, size: int | None, folder: Path) -> None:
    megabytes = "" if size is None else f" ({size / 1e6:,.1f} MB)"
    log(f"downloading {what}{megabytes} once, to {folder}")


def published_url(name: str) -> str | None:
    """The address of a backbone's published weights; None if they are on the Hugging Face Hub, or nowhere."""
    if name in INITIALIZATIONS and INITIALIZATIONS[name].url:
        return INITIALIZATIONS[name].url
    cfg = get_pretrained_cfg(timm_name(name))
    return None if cfg is None or cfg.hf_hub_id else cfg.url


def _package(name: str) -> str | None:
    return INITIALIZATIONS[name].package if name in INITIALIZATIONS else None


def _hub_files(name: str) -> Iterator[tuple[str, str | None, str]]:
    """The repository, revision and name of the files on the Hub that could be downloaded; none if one is there."""
    from huggingface_hub import try_to_load_from_cache

    cfg = get_pretrained_cfg(timm_name(name))
    if cfg is None or not cfg.hf_hub_id:
        return
    repo, _, revision = cfg.hf_hub_id.partition("@")
    names = HUB_FILES if cfg.hf_hub_filename is None else (cfg.hf_hub_filename,)
    if not any(isinstance(try_to_load_from_cache(repo, each, revision=revision or None), str) for each in names):
        yield from ((repo, revision or None, each) for each in names)


def _hub_size(name: str) -> int | None:
    """The size in bytes of a backbone's weights on the Hub; None if it does not say."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    for repo, revision, file in _hub_files(name):
        try:
            return get_hf_file_metadata(hf_hub_url(repo, file, revision=revision), timeout=TIMEOUT).size
        except OfflineModeIsEnabled:
            raise InputError("HF_HUB_OFFLINE=1 is set, and they are not in the cache") from None
        except HfHubHTTPError:  # there is no such file, it needs a login, or the Hub is busy: the download will say
            continue
        except Exception as error:  # networks fail in many ways
            raise InputError(f"{constants.ENDPOINT} does not answer: {one_line(error, 120)}") from error
    return None


def _url_size(url: str) -> int | None:
    request = urllib.request.Request(url, method="HEAD")
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        size = response.headers.get("Content-Length")
    return None if size is None else int(size)


def _file_of(url: str) -> Path:
    return Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(url).path).name


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)
