"""Refiners and embeddings for tests."""

from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from sklearn.datasets import load_digits

from tests.models.refiner_reference import PAPER
from vicinal.data import Table
from vicinal.models import ContextRefiner

DIM = 6


def moving(depth: int = 3, neighbors: int = 3) -> ContextRefiner:
    """A refiner that is not the identity."""
    torch.manual_seed(0)
    refiner = ContextRefiner(DIM, depth, num_heads=2, neighbors=neighbors, **PAPER)
    with torch.no_grad():
        for block in refiner.blocks:
            block.output.copy_(0.3 * torch.randn(DIM, DIM))
    return refiner


def expanding(dim: int, neighbors: int = 8) -> ContextRefiner:
    """Two blocks that each add half the mean of the neighbors: query expansion."""
    refiner = ContextRefiner(dim, depth=2, num_heads=1, neighbors=neighbors, **PAPER)
    with torch.no_grad():
        for block in refiner.blocks:
            block.value.copy_(torch.eye(dim))
            block.output.copy_(0.5 * torch.eye(dim))
            block.query.zero_()
    return refiner


def embedded(rows: int = 30, classes: int = 5, **columns: object) -> tuple[np.ndarray, Table]:
    vectors = np.random.default_rng(1).normal(size=(rows, DIM))
    return vectors, Table(pd.DataFrame({"label": np.arange(rows) % classes, **columns}))


def in_sides(rows: int = 30) -> tuple[np.ndarray, Table]:
    """Each third row is a query, each second one in the gallery; ten are neither."""
    number = np.arange(rows)
    return embedded(rows, is_query=number % 3 == 0, is_gallery=number % 2 == 0)


def noisy_digits(rows: int = 400) -> tuple[np.ndarray, Table]:
    data = load_digits()
    noise = np.random.default_rng(0).normal(size=data.data.shape)
    return (data.data - data.data.mean(axis=0) + 5 * noise)[:rows], Table(pd.DataFrame({"label": data.target[:rows]}))


def pictured(folder: Path, rows: int = 30) -> tuple[np.ndarray, Table]:
    """With images."""
    paths = [str(folder / f"{row}.png") for row in range(rows)]
    for row, path in enumerate(paths):
        Image.new("RGB", (8, 8), (row, 0, 0)).save(path)
    return embedded(rows, path=paths)


def misfits(folder: Path) -> list[tuple[np.ndarray, Table, str]]:
    """Embeddings and tables that do not fit each other or a refiner, with the message."""
    vectors, table = pictured(folder, 6)
    broken = vectors.copy()
    broken[3, 0] = np.nan
    return [
        (vectors[:, :4], table, "embeddings have 4 dimensions, the refiner is for 6; use the refiner that"),
        (vectors[:5], table, "5 embeddings, but a table of 6 rows"),
        (vectors[:0], Table(table.frame.iloc[:0]), "no embeddings to refine"),
        (broken, table, "embedding 3 holds NaN"),
    ]
