"""The base class of models that are saved as folders: saving, loading, uploading, fingerprints."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from vicinal.models import model_folder
from vicinal.models.execution import check_buffers, check_network_memory, limited_build
from vicinal.models.model_card import exported_text, name_on_card
from vicinal.models.model_folder import ModelFormat
from vicinal.utils.errors import InputError, one_line
from vicinal.utils.memory import keep_large_blocks

MORE_TENSORS = 500
ADAPTER = "default"  # the name that peft gives to the one adapter of a layer

Model = TypeVar("Model", bound="SavedModel")
BESIDE = (".bin", ".preprocessing.json", ".parity.json", ".parity.md")


class SavedModel(nn.Module, ABC):
    """A model that is saved as a folder. Subclasses define its configuration and how it is created from one.

    Attributes:
        recipe: How the model was trained, as JSON values; empty if unknown.
        metrics: The metrics of the model, as JSON values; empty if unknown.
    """

    model_format: ClassVar[ModelFormat]

    def __init__(self) -> None:
        super().__init__()
        keep_large_blocks()
        self.recipe: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}

    @abstractmethod
    def _get_config(self) -> dict[str, Any]:
        """The configuration without recipe and metrics. It and the weights determine the outputs of the model."""

    @classmethod
    @abstractmethod
    def _from_config(cls: type[Model], config: Mapping[str, Any], allow_imports: Sequence[str] = ()) -> Model:
        """Create a model with any weights from a configuration whose keys and types are checked.

        Nothing is imported that the configuration names, except from the packages in `allow_imports`.
        """

    def fingerprint(self) -> str:
        """A short hash of configuration and weights; models with equal fingerprints have equal outputs.

        Example:
            >>> from vicinal import Embedder
            >>> model = Embedder("test_resnet", dim=8, pretrained=False)
            >>> len(model.fingerprint())
            16
        """
        digest = hashlib.sha256(json.dumps(self._get_config(), sort_keys=True, default=str).encode())
        hash_tensors(digest, merged_state_dict(self))
        return digest.hexdigest()[:16]

    def save_pretrained(
        self, folder: str | Path, recipe: Mapping[str, Any] | None = None, metrics: Mapping[str, Any] | None = None
    ) -> None:
        """Save the model as a folder: `model.safetensors`, `config.json`, `README.md` (a model card).

        The folder is replaced as a whole; if anything fails, it is unchanged. Weights keep their data type, which must
        be the same for all.

        Args:
            folder: The folder. A folder that holds anything but a saved model of the same kind is refused.
            recipe: How the model was trained, as JSON values; by default `self.recipe`.
            metrics: The metrics of the model, as JSON values; by default `self.metrics`.

        Raises:
            InputError: The folder holds other files, recipe or metrics are not JSON values, a number exceeds the limit
                for loading, or weights have different data types.
            OSError: The folder cannot be written, such as on a full disk.

        Example:
            >>> from vicinal import Embedder
            >>> model = Embedder("test_resnet", dim=8, pretrained=False)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     model.save_pretrained(f"{folder}/model", metrics={"recall@1": 0.9})
            ...     Embedder.from_pretrained(f"{folder}/model").metrics
            {'recall@1': 0.9}
        """
        config = {
            **self._get_config(),
            "recipe": dict(self.recipe if recipe is None else recipe),
            "metrics": dict(self.metrics if metrics is None else metrics),
        }
        _common_dtype(dict(self.named_parameters()))
        model_folder.write(folder, self.model_format, config, merged_state_dict(self))

    @classmethod
    def from_pretrained(
        cls: type[Model], source: str | Path, revision: str | None = None, allow_imports: Sequence[str] = ()
    ) -> Model:
        """Load a saved model in evaluation mode, on the CPU, with the data type that it was saved with.

        Nothing is unpickled, no code in the folder is executed, no code that it names is imported unless its package is
        in `allow_imports`, and no other weights are downloaded. Names and shapes of the tensors are compared with the
        configuration before memory is allocated.

        Args:
            source: A folder that `save_pretrained` wrote, the folder of a run, or the name of such a model on the
                Hugging Face hub.
            revision: A branch, tag or commit on the hub.
            allow_imports: Packages or modules whose code the folder may name, as one that was saved after
                :meth:`Embedder.from_module` does.

        Raises:
            InputError: The model does not exist, is of another kind, or its files are damaged or do not fit; the
                message names file and key.
        """
        folder = model_folder.find_folder(source, revision)
        config = model_folder.read_config(folder, cls.model_format)
        with torch.random.fork_rng(devices=[]):
            expected = cls._build_on_meta(folder, config, allow_imports)
            model_folder.check_tensors(folder, expected.state_dict())
            check_network_memory(f"model: {folder}", expected)
            tensors = model_folder.read_tensors(folder)
            model = cls._from_config(config, allow_imports)
        weights = {name: tensors[name] for name, _ in model.named_parameters()}
        model.to(_common_dtype(weights, f"{folder / model_folder.WEIGHTS}: "))
        model.load_state_dict(tensors)
        model.recipe, model.metrics = config["recipe"], config["metrics"]
        return model.eval()

    @classmethod
    def _build_on_meta(
        cls: type[Model], folder: Path, config: Mapping[str, Any], allow_imports: Sequence[str]
    ) -> Model:
        """Build the model without memory for its tensors."""
        # Building may replace some tensors, such as those of a classifier, and buffers may not be in the file.
        max_tensors = 2 * model_folder.count_tensors(folder) + MORE_TENSORS
        try:
            with torch.device("meta"), limited_build("it", max_tensors):
                model = cls._from_config(config, allow_imports)
            check_buffers("it", model)
        except InputError as error:
            raise InputError(f"{folder / model_folder.CONFIG}: {error}") from error
        return model

    def push_to_hub(
        self, name: str, private: bool = False, token: str | None = None, onnx: str | Path | None = None
    ) -> str:
        """Upload the folder that `save_pretrained` writes to the Hugging Face hub; its card loads the model from there.

        Args:
            name: `owner/model`; the repository is created if it does not exist.
            private: Whether a new repository is private.
            token: The token for the hub; by default that of the environment variable HF_TOKEN, or the one stored by
                `hf auth login`.
            onnx: A file that `vicinal export` wrote of this model, which is uploaded too, with the files beside it;
                the model card says how it compares and how it is used without torch.

        Returns:
            The URL of the commit.

        Raises:
            InputError: The hub cannot be reached or refuses the upload, no model can have that name there, or `onnx`
                is of another model.
        """
        from huggingface_hub import HfApi

        check_hub_name(name)
        report = None if onnx is None else read_exported(onnx, self.fingerprint())
        hub = HfApi(token=token)
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent) / name.rpartition("/")[2]
            self.save_pretrained(folder)
            try:
                full_name = hub.create_repo(name, private=private, exist_ok=True).repo_id
                name_on_card(folder, full_name)
                if onnx is not None and report is not None:
                    add_exported(folder, onnx, report, full_name)
                return str(hub.upload_folder(repo_id=full_name, folder_path=folder, commit_message="Upload model"))
            except (OSError, ValueError) as error:
                raise InputError(f"cannot upload to {name!r} on the Hugging Face hub: {one_line(error)}") from error


def hash_tensors(digest: hashlib._Hash, tensors: Mapping[str, Tensor]) -> None:
    """Add names, types, shapes and values of tensors to a digest."""
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def _common_dtype(weights: Mapping[str, Tensor], source: str = "") -> torch.dtype:
    """The data type of all weights; with several, the data type of the inputs would be undefined."""
    names = {tensor.dtype: name for name, tensor in weights.items()}
    if len(names) > 1:
        several = ", ".join(f"{name} is {dtype}" for dtype, name in names.items())
        raise InputError(
            f"{source}weights of different dtypes ({several}); convert the model to one, as by model.float()"
        )
    if not names:
        raise InputError(f"{source}the model has no weights; there is nothing to save")
    return next(iter(names))


def check_same_model(expected: str | None, given: str | None, owner: str, remedy: str) -> None:
    """Check that embeddings are of the expected model; a fingerprint of None means that the model is unknown.

    The message begins with `owner`, such as "the index was built with", and ends with the remedy.
    """
    if None not in (expected, given) and expected != given:
        right, wrong = (one_line(str(each), 80) for each in (expected, given))
        raise InputError(f"{owner} embeddings of the model {right}, not of {wrong}; {remedy}")


def check_hub_name(name: str) -> None:
    """Raise InputError if no model on the Hugging Face Hub can have a name."""
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except ValueError as error:
        raise InputError(
            f"{one_line(name, 80)!r} cannot be the name of a model on the Hugging Face Hub, such as me/birds"
        ) from error


def read_exported(path: str | Path, fingerprint: str) -> dict[str, Any]:
    """Read the parity report beside a model that `vicinal export` wrote, which must be of this fingerprint."""
    path = Path(path)
    report = path.with_suffix(".parity.json")
    for file in (path, path.with_suffix(".preprocessing.json"), report):
        if not file.is_file():
            raise InputError(
                f"{file}: no such file; give a model that `vicinal export` wrote, with the files beside it"
            )
    try:
        values: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        found = str(values["fingerprint"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{report}: not a parity report ({one_line(error, 80)})") from None
    if found.partition("+")[0] != fingerprint:
        raise InputError(f"{path} was exported from the model {one_line(found, 80)}, not from {fingerprint}")
    return values


def add_exported(folder: Path, path: str | Path, report: Mapping[str, Any], name: str) -> None:
    """Copy an exported model into the folder of a saved one, and describe it on the card under a name of the Hub."""
    path = Path(path)
    for file in (path, *(path.with_suffix(suffix) for suffix in BESIDE)):
        if file.is_file():
            shutil.copy(file, folder / file.name)
    card = folder / "README.md"
    card.write_text(card.read_text(encoding="utf-8") + exported_text(path.name, report, name), encoding="utf-8")


@torch.no_grad()
def merged_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of a model with its adapters merged, as that of a model without adapters; it is not changed."""
    state: dict[str, Tensor] = model.state_dict()
    for name, layer in adapted_layers(model):
        own = {key: state.pop(key) for key in list(state) if key.startswith(f"{name}.")}
        base = f"{name}.base_layer."
        state |= {f"{name}.{key.removeprefix(base)}": value for key, value in own.items() if key.startswith(base)}
        state[f"{name}.weight"] = state[f"{name}.weight"] + layer.get_delta_weight(ADAPTER)
    return state


def adapted_layers(model: nn.Module) -> Iterable[tuple[str, Any]]:
    """The names and layers of a model that have LoRA adapters."""
    return ((name, layer) for name, layer in model.named_modules() if hasattr(layer, "get_delta_weight"))
