"""Saved models made bad, and how they are refused."""

import json

import pytest
import safetensors.torch

from vicinal.utils.errors import InputError


def refused(kind, source, message):
    """Loading such a model of this kind fails, in one line that is not endless."""
    with pytest.raises(InputError, match=message) as error:
        kind.from_pretrained(source)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 700


def change(folder, **values):
    """Set keys of the config; the value DELETE takes one out."""
    config = json.loads((folder / "config.json").read_text())
    config.update(values)
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value != "DELETE"}))


def rewrite(folder, edit):
    """Edit the tensors by name in place."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    edit(tensors)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
