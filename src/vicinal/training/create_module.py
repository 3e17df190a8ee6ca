"""The training module of a recipe: a new model and loss, with the recipe's sample selection."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import copy
from typing import Any

import torch

from vicinal.losses import Loss
from vicinal.losses.base import loss_terms
from vicinal.models import Embedder
from vicinal.models.downloads import is_downloaded
from vicinal.training.class_centers import check_initial_centers, create_centers
from vicinal.training.fine_tuning import layer_factors, set_up_backbone
from vicinal.training.recipes.recipe import Recipe
from vicinal.training.sample_selection import CoTeachingModule, CoTeachingPlusModule, PrismModule, PrismSelector
from vicinal.training.training_module import TrainingModule
from vicinal.training.transition import check_transition
from vicinal.utils.errors import InputError


def create_training_module(
    recipe: Recipe, classes: Sequence[str | int], num_images: int, resumed: bool = False
) -> TrainingModule:
    """Create model and loss, in the module for the recipe's sample selection.

    Args:
        recipe: all settings.
        classes: names of the training classes.
        num_images: number of training images.
        resumed: whether the weights will be those of a checkpoint.

    Raises:
        InputError: the settings contradict each other.
    """
    settings = recipe.settings
    torch.manual_seed(settings.seed)
    embedder, loss = _create_model_and_loss(recipe, len(classes))
    if not resumed:
        check_initial_centers(settings.centers, loss, embedder)
        check_transition(settings.transition, loss, classes)
    selection, size = settings.sample_selection, settings.micro_batch_size
    if selection.method == "none":
        return TrainingModule(embedder, loss, size)
    more: dict[str, Any] = {"warmup_epochs": selection.warmup_epochs, "micro_batch_size": size}
    if selection.method == "prism":
        selector = PrismSelector(selection.noise_rate, selection.memory_size or num_images, selection.window)
        return PrismModule(embedder, loss, selector, **more)
    _require_sample_values(loss, selection.method)
    peer, peer_loss = _create_model_and_loss(recipe, len(classes))
    more["noise_rate"] = selection.noise_rate
    if selection.method == "co-teaching":
        return CoTeachingModule(embedder, loss, peer, peer_loss, **more)
    more["co_teaching_epochs"] = selection.co_teaching_epochs
    return CoTeachingPlusModule(embedder, loss, peer, peer_loss, **more)


def check_before_download(recipe: Recipe, classes: Sequence[str | int], num_images: int, resumed: bool) -> None:
    """Find mistakes of a recipe before the weights of its backbone are downloaded, if they have to be.

    The module is created without weights and memory, on the meta device; arguments and errors are those of
    :func:`create_training_module`.
    """
    if recipe.model["pretrained"] is not True or is_downloaded(recipe.model["backbone"]):
        return
    untrained = copy(recipe)
    untrained.model = {**recipe.model, "pretrained": False}
    with torch.random.fork_rng(devices=[]), torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = create_training_module(untrained, classes, num_images, resumed)
            layer_factors(module.embedders, recipe.settings.optimizer.layer_decay)
        except InputError:
            raise
        except Exception:  # something needs values, which the device meta does not have; the module itself will show
            return


def _create_model_and_loss(recipe: Recipe, num_classes: int) -> tuple[Embedder, Loss]:
    embedder, loss = recipe.create_embedder(), recipe.create_loss()
    set_up_backbone(embedder, recipe.settings)
    create_centers(loss, num_classes, embedder.train_output_dim)
    return embedder, loss


def _require_sample_values(loss: Loss, method: str) -> None:
    for term in loss_terms(loss):
        if type(term)._anchor_values is Loss._anchor_values:
            raise InputError(
                f"sample_selection.method = {method} needs a loss that has a value for each sample; "
                f"{type(term).__name__} has none"
            )
