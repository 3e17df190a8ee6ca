"""A recipe extends others: what is merged, what is replaced, and where a mistake is."""

from pathlib import Path

from tests.refusals import refused_call
from vicinal.training import Recipe
from vicinal.training.recipes.recipe_file import MAX_FILES, RecipeFile


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def test_groups_are_merged_and_all_else_is_replaced(tmp_path: Path) -> None:
    write(
        tmp_path,
        bases__data="data: {source: photos, fractions: {train: 0.5, val: 0.2, test: 0.3}}\nepochs: 5\n",
        bases__more="extends: data.yaml\ntransform: {scale: [0.5, 1]}\nepochs: 6\noptimizer: {lr: 0.1, name: sgd}\n",
        own="extends: [bases/data.yaml, bases/more.yaml]\n"
        "data: {fractions: {train: 0.5, val: 0.5}}\noptimizer: {lr: 0.2}\ntransform: {scale: [0.1, 1]}\n",
    )
    assert RecipeFile.read(tmp_path / "own.yaml").values == {
        "data": {"source": "photos", "fractions": {"train": 0.5, "val": 0.5}},
        "epochs": 6,
        "optimizer": {"lr": 0.2, "name": "sgd"},
        "transform": {"scale": [0.1, 1]},
    }


def test_a_class_is_replaced_with_its_arguments(tmp_path: Path) -> None:
    margin = "{class_path: MarginLoss, init_args: {beta: 1.0}}"
    for base, loss, expected in (
        (margin, "{init_args: {scale: 2}}", {"class_path": "MarginLoss", "init_args": {"beta": 1.0, "scale": 2}}),
        (margin, "{class_path: TripletLoss, init_args: {}}", {"class_path": "TripletLoss", "init_args": {}}),
        (margin, "{class_path: TripletLoss}", {"class_path": "TripletLoss"}),
        (margin, "TripletLoss", "TripletLoss"),
        ("TripletLoss", "{init_args: {margin: 1}}", {"class_path": "TripletLoss", "init_args": {"margin": 1}}),
    ):
        write(tmp_path, base=f"loss: {base}", own=f"extends: base.yaml\nloss: {loss}")
        assert RecipeFile.read(tmp_path / "own.yaml").values["loss"] == expected, loss


def test_the_recipe_of_a_run_has_all_values(tmp_path: Path) -> None:
    write(tmp_path, base="epochs: 7\nloss: {class_path: MarginLoss, init_args: {beta: 0.9}}", own="extends: base.yaml")
    recipe = Recipe.load(tmp_path / "own.yaml")
    recipe.save(tmp_path / "saved.yaml")
    assert "extends" not in (tmp_path / "saved.yaml").read_text()
    assert Recipe.load(tmp_path / "saved.yaml").config == recipe.config
    assert (recipe.settings.epochs, recipe.create_loss().beta) == (7, 0.9)


def test_a_mistake_is_where_it_was_written(tmp_path: Path) -> None:
    write(tmp_path, base="epochs: 3\n\noptimizer: {lr: -1}\nbatch_siz: 3\n", own="extends: base.yaml\nepochs: many\n")
    refused_call(r"own\.yaml:2: epochs = many must be", Recipe.load, tmp_path / "own.yaml", ["--optimizer.lr=1"])
    write(tmp_path, own="extends: base.yaml\n")
    refused_call(r"base\.yaml:4: unknown key batch_siz", Recipe.load, tmp_path / "own.yaml")
    write(tmp_path, base="\noptimizer: {lr: -1}\n", own="extends: base.yaml\noptimizer: {name: sgd}\n")
    refused_call(r"base\.yaml:2: optimizer.lr = -1", Recipe.load, tmp_path / "own.yaml")


def test_what_cannot_be_extended(tmp_path: Path) -> None:
    write(tmp_path, one="\nextends: two.yaml", two="extends: [one.yaml]", self="extends: ./self.yaml")
    for name, message in (
        ("one", r"two\.yaml:1: extends one\.yaml, which extends this file"),
        ("self", r"self\.yaml:1: extends \./self\.yaml, which extends this file"),
    ):
        refused_call(message, RecipeFile.read, tmp_path / f"{name}.yaml")
    for text, message in (
        ("extends: nowhere.yaml", r"own\.yaml:1: extends nowhere\.yaml, but .*/nowhere\.yaml does not exist"),
        ("extends: /dev/zero", r"own\.yaml:1: extends /dev/zero, but /dev/zero does not exist"),
        ("extends: {a: 1}", r"own\.yaml:1: extends must be the path of a recipe or a list of them"),
        ("extends: [3]", r"own\.yaml:1: extends must be"),
    ):
        write(tmp_path, own=text)
        refused_call(message, RecipeFile.read, tmp_path / "own.yaml")


def test_files_are_limited(tmp_path: Path) -> None:
    """Else a few files, each of which extends the next one twice, would be read very often."""
    write(tmp_path, last="epochs: 3")
    for number in range(30):
        following = f"{number + 1}.yaml" if number < 29 else "last.yaml"
        write(tmp_path, **{str(number): f"extends: [{following}, {following}]"})
    refused_call(f"extends more than {MAX_FILES} files", RecipeFile.read, tmp_path / "0.yaml")
