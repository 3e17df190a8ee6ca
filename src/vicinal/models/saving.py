"""What all models that have a folder share: saving, loading, uploading, fingerprints."""

from __future__ import annotations

import hashlib
import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from huggingface_hub import HfApi
from torch import Tensor, nn

from vicinal.errors import InputError
from vicinal.models import model_folder
from vicinal.models.initializations import one_line
from vicinal.models.model_format import ModelFormat

Model = TypeVar("Model", bound="SavedModel")


class SavedModel(nn.Module, ABC):
    """A model that is saved as a folder. Its kinds say what their config holds and how they are built from one.

    Attributes:
        recipe: How the model was trained, JSON values; empty if unknown.
        metrics: How good it was found, JSON values; empty if unknown.
    """

    model_format: ClassVar[ModelFormat]

    def __init__(self) -> None:
        super().__init__()
        self.recipe: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}

    @abstractmethod
    def _described(self) -> dict[str, Any]:
        """The config without recipe and metrics: with the weights, all that decides what the model gives."""

    @classmethod
    @abstractmethod
    def _from_config(cls: type[Model], config: Mapping[str, Any]) -> Model:
        """Build a model of a config whose keys and types are checked; its weights do not matter."""

    def fingerprint(self) -> str:
        """A short hash of config and weights: two models with the same one give the same vectors.

        Example:
            >>> from vicinal import Embedder
            >>> model = Embedder("test_resnet", dim=8, pretrained=False)
            >>> len(model.fingerprint())
            16
        """
        digest = hashlib.sha256(json.dumps(self._described(), sort_keys=True, default=str).encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]

    def save_pretrained(
        self,
        folder: str | Path,
        recipe: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        """Save the model as a folder: `model.safetensors`, `config.json`, `README.md` (a model card).

        The folder is replaced as a whole or, if anything fails, left as it was. Weights keep their dtype, which must be
        the same for all.

        Args:
            folder: Where; a folder that holds anything but a saved model of the same kind is refused.
            recipe: How the model was trained, JSON values; None: what `self.recipe` says.
            metrics: How good it was found, JSON values; None: what `self.metrics` says.

        Raises:
            InputError: the folder holds something else, recipe or metrics are not JSON values, a number is larger than
                loading allows, or weights are of different dtypes.
            OSError: it cannot be written, as on a full disk.

        Example:
            >>> from vicinal import Embedder
            >>> model = Embedder("test_resnet", dim=8, pretrained=False)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     model.save_pretrained(f"{folder}/model", metrics={"recall@1": 0.9})
            ...     Embedder.from_pretrained(f"{folder}/model").metrics
            {'recall@1': 0.9}
        """
        config = {
            **self._described(),
            "recipe": dict(self.recipe if recipe is None else recipe),
            "metrics": dict(self.metrics if metrics is None else metrics),
        }
        _weights_dtype(dict(self.named_parameters()))
        model_folder.write(folder, self.model_format, config, self.state_dict())

    @classmethod
    def from_pretrained(cls: type[Model], source: str | Path, revision: str | None = None) -> Model:
        """Load a saved model, in evaluation mode, on the CPU, in the dtype that it was saved in.

        Nothing is unpickled, no code from the folder is run, and no other weights are downloaded. The tensors' names
        and shapes are held against the config before memory is taken for either.

        Args:
            source: A folder that `save_pretrained` wrote, or the name of such a model on the Hugging Face hub.
            revision: Branch, tag or commit on the hub.

        Raises:
            InputError: there is no such model, it is of another kind, or its files are not whole or do not go together;
                with file and key.
        """
        folder = model_folder.locate(source, revision)
        config = model_folder.read_config(folder, cls.model_format)
        with torch.random.fork_rng(devices=[]):
            try:
                with torch.device("meta"):
                    plan = cls._from_config(config)
            except InputError as error:
                raise InputError(f"{folder / model_folder.CONFIG}: {error}") from error
            tensors = model_folder.read_tensors(folder, plan.state_dict())
            model = cls._from_config(config)
        weights = {name: tensors[name] for name, _ in model.named_parameters()}
        model.to(_weights_dtype(weights, f"{folder / model_folder.WEIGHTS}: "))
        model.load_state_dict(tensors)
        model.recipe, model.metrics = config["recipe"], config["metrics"]
        return model.eval()

    def push_to_hub(self, name: str, private: bool = False, token: str | None = None) -> str:
        """Upload the folder that `save_pretrained` writes to the Hugging Face hub.

        Args:
            name: `owner/model`; made if missing.
            private: Make it private, if it is made now.
            token: Of the hub; None: the one stored by `hf auth login`.

        Returns:
            The address of the commit.

        Raises:
            InputError: the hub cannot be reached or refuses.
        """
        hub = HfApi(token=token)
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent) / name.rpartition("/")[2]
            self.save_pretrained(folder)
            try:
                full_name = hub.create_repo(name, private=private, exist_ok=True).repo_id
                return str(hub.upload_folder(repo_id=full_name, folder_path=folder, commit_message="Upload model"))
            except (OSError, ValueError) as error:
                raise InputError(f"cannot upload to {name!r} on the Hugging Face hub: {one_line(error)}") from error


def _weights_dtype(weights: Mapping[str, Tensor], where: str = "") -> torch.dtype:
    """The one dtype of all weights; a model of several could not tell which one its inputs are to have."""
    names = {tensor.dtype: name for name, tensor in weights.items()}
    if len(names) > 1:
        several = ", ".join(f"{name} is {dtype}" for dtype, name in names.items())
        raise InputError(f"{where}weights of different dtypes ({several}); bring the model to one, as by model.float()")
    if not names:
        raise InputError(f"{where}the model has no weights; there is nothing to save")
    return next(iter(names))


def check_same_model(known: str | None, given: str | None, what: str, remedy: str) -> None:
    """Refuse the embeddings of another model; None is a model nobody knows.

    Args:
        known: fingerprint of the right model.
        given: of the one that made the embeddings.
        what: was made with the former, such as "the index was built with".
        remedy: what to do.

    Raises:
        InputError: both are known and differ.
    """
    if None not in (known, given) and known != given:
        right, wrong = (one_line(str(each), 80) for each in (known, given))
        raise InputError(f"{what} embeddings of the model {right}, not of {wrong}; {remedy}")
