"""Grocery Store: photographs of products on shelves, in a hierarchy."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from vicinal.data.benchmarks import cache
from vicinal.data.table import Table
from vicinal.utils.errors import InputError
from vicinal.utils.files import cache_folder

ARCHIVE, TABLE = "grocery.zip", "table.csv"


def grocery(root: str | Path | None = None) -> Table:
    """Grocery Store (Klasson et al., WACV 2019; MIT licence) with disjoint classes: 61 products in 33 coarse classes.

    The photographs are those of the published dataset in another division: all products of a coarse class, such as
    `Apple`, are in one split. 31 products with 2,179 images are for training, 10 with 642 for validation, 20 with 1,234
    for testing. Images of a product come in short series from one shelf, so that recall@1 flatters; the first part of
    their names (`train`, `val` or `test`) is the published split, of other stores and days, and the column `group`,
    so that evaluation leaves out images of the query's product and series.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal. It
            holds `grocery.zip`, with `<coarse>/<product>/<image>.jpg` and `table.csv`, or the files unpacked from it.
            The archive is unpacked to `grocery/images`, in the default folder if the root is not writable.

    Raises:
        InputError: A file is missing or is not a valid archive, or the counts are not those above.
    """
    folder, found = cache.find_folder(root, ("grocery", "grocery/images"), (TABLE, ARCHIVE), f"put {ARCHIVE} there")
    if found == ARCHIVE:
        unpacked = cache.writable_root(cache_folder(root), "grocery") / "grocery" / "images"
        cache.prepare_folder(unpacked, TABLE, partial(_unpack, folder / ARCHIVE))
        folder = unpacked
    else:
        cache.check_unchanged(folder)
    table = Table.from_csv(folder / TABLE)
    group = [Path(path).name.partition("_")[0] for path in table.paths]
    return cache.check_complete("grocery", Table(table.frame.assign(group=group)), folder)


def _unpack(path: Path, folder: Path) -> None:
    pattern = rf"{TABLE}|[^/]+/[^/]+/[^/]+\.jpg"
    cache.unpack_zip(path, folder, (".csv", ".jpg"), pattern, f"<coarse>/<product>/<image>.jpg, beside {TABLE}")
    if not (folder / TABLE).is_file():
        raise InputError(f"{path}: no {TABLE} in this archive; it must hold the paths, labels and splits")
