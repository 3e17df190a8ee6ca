import re
from pathlib import Path

import pytest
import torch

from tests.conftest import SMALL
from tests.refusals import refused_call
from tests.training.runs import interrupted
from vicinal.losses import ContextualLoss, ContrastiveLoss, Loss, MarginLoss, MultiSimilarityLoss, SimilarityRegularizer
from vicinal.mining import DistanceWeightedMiner, MultiSimilarityMiner
from vicinal.training import Recipe, resume, train
from vicinal.training.recipes.recipe import SMALL_BACKBONE, RefinerRecipe
from vicinal.training.recipes.recipe_classes import OfferedClasses, loss_names
from vicinal.training.recipes.recipe_file import RecipeFile
from vicinal.training.recipes.recipe_values import arguments_schema, class_help
from vicinal.utils.errors import InputError


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return path


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, "epochs: 3\noptimizer:\n  lr: 0.1\n  name: sgd\n")
    recipe = Recipe.load(path, ["--optimizer.lr", "0.2"])
    assert (recipe.settings.epochs, recipe.settings.optimizer.lr, recipe.settings.optimizer.name) == (3, 0.2, "sgd")
    assert recipe.settings.optimizer.weight_decay == 1e-4


def test_preprocessing_is_by_default_that_of_the_backbones_weights() -> None:
    max_grad_norm = "--model.backbone=vit_base_patch16_clip_224.openai"
    transform = Recipe.load(overrides=[max_grad_norm]).settings.transform
    assert (transform.mean[0], transform.size, transform.resize) == (0.48145466, 224, None)
    own = Recipe.load(
        overrides=[max_grad_norm, "--transform.size=64", "--transform.mean=[0.1,0.2,0.3]"]
    ).settings.transform
    assert (own.mean, own.size) == ((0.1, 0.2, 0.3), 64)
    gray = Recipe.load(overrides=["--transform.channels=1"]).settings.transform
    assert gray.mean == (0.449,)


def test_loss_by_name_with_arguments(tmp_path: Path) -> None:
    path = write(tmp_path, "loss:\n  class_path: MultiSimilarityLoss\n  init_args: {alpha: 3, miner: null}\n")
    loss = Recipe.load(path, ["--loss.beta=40"]).create_loss()
    assert isinstance(loss, MultiSimilarityLoss)
    assert (loss.alpha, loss.beta, loss.miner) == (3, 40, None)
    loss = Recipe.load(overrides=["--loss=MultiSimilarityLoss"]).create_loss()
    assert loss.miner == MultiSimilarityMiner(0.1)


def test_the_whole_loss_of_a_paper(tmp_path: Path) -> None:
    """Eq. (6) of Liao et al., from the command line."""
    losses = (
        "{class_path: ContextualLoss, init_args: {epsilon: 0.04}}, {class_path: SimilarityRegularizer}, "
        "{class_path: ContrastiveLoss, init_args: {positive_margin: 0.75}}"
    )
    overrides = ["--loss=WeightedSum", f"--loss.losses=[{losses}]", "--loss.weights=[0.8, 0.1, 0.2]"]
    loss = Recipe.load(write(tmp_path, "epochs: 3\n"), overrides).create_loss()
    x, labels = torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), torch.arange(16) // 4
    whole = 0.8 * ContextualLoss(epsilon=0.04) + 0.1 * SimilarityRegularizer() + 0.2 * ContrastiveLoss(0.75)
    assert torch.equal(loss(x, labels), whole(x, labels))


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("loss: MarginLoss\n", []),
        ("loss:\n  class_path: vicinal.losses.MarginLoss\n", []),
        ("epochs: 3\n", ["--loss=MarginLoss"]),
        ("epochs: 3\n", ["--loss", "MarginLoss"]),
        ("epochs: 3\n", ["--loss.class_path=MarginLoss"]),
        ("epochs: 3\n", ["--loss={class_path: MarginLoss}"]),
        ("loss: MultiSimilarityLoss\n", ["--loss=MarginLoss"]),
    ],
)
def test_a_named_loss_has_its_own_defaults(tmp_path: Path, text: str, overrides: list[str]) -> None:
    """Not those of the default loss, which has a beta, a miner and a reduction too."""
    loss = Recipe.load(write(tmp_path, text), [*overrides, "--loss.margin=0.3"]).create_loss()
    assert isinstance(loss, MarginLoss)
    assert (loss.margin, loss.beta.tolist(), loss.reduction) == (0.3, [pytest.approx(1.2)], "violating")
    assert loss.miner == DistanceWeightedMiner()


def test_resolved_recipe_is_the_same_recipe(tmp_path: Path) -> None:
    recipe = Recipe.load(overrides=["--optimizer.lr=0.3", "--loss.miner=null", "--model.backbone_args={a: 1}"])
    recipe.save(tmp_path / "resolved.yaml")
    again = Recipe.load(tmp_path / "resolved.yaml")
    assert again.config == recipe.config
    again.check_same(recipe)
    with pytest.raises(InputError, match=r"optimizer.lr = 0.3 differs from the run's own 0.0002"):
        Recipe.load(overrides=["--loss.miner=null", "--model.backbone_args={a: 1}"]).check_same(recipe)


def test_a_bad_recipe_is_one_line_with_file_line_and_key(tmp_path: Path) -> None:
    for text, message in (
        ("epochs: 3\noptimzer:\n  lr: 1\n", "recipe.yaml:2: unknown key optimzer; did you mean optimizer?"),
        ("optimizer:\n  name: sgd\n  lrr: 1\n", "recipe.yaml:3: unknown key optimizer.lrr; did you mean optimizer.lr"),
        ("batch_size: 8\nepochs: 0\n", "recipe.yaml:2: epochs = 0 must be at least 1"),
        ("seed: 1\nbatch_size: 10\nsamples_per_class: 4\n", "recipe.yaml:2: batch_size = 10 must be a multiple of"),
        ("samples_per_class: 0\ncoarse_classes_per_batch: 2\n", "recipe.yaml:2: coarse_classes_per_batch = 2 must be"),
        ("batch_size: 128\nsamples_per_class: 4\ncoarse_classes_per_batch: 3\n", "recipe.yaml:1: batch_size = 128"),
        ("coarse_column: coarse_2\n", "recipe.yaml:1: coarse_column = coarse_2 must be left out unless"),
        ("data:\n  noise: {foreign_fraction: 0.1}\n", "recipe.yaml:2: data.noise.foreign_fraction = 0.1 must be"),
        ("data:\n  noise: {open_set_labels: 0.1, open_set_cluster_size: 0.5}\n", "recipe.yaml:2: data.noise.open_set_"),
        ("optimizer: {lr: -1}\n", "recipe.yaml:1: optimizer.lr = -1.0 must be a positive number"),
        ("transform:\n  size: 0\n", "recipe.yaml:2: transform.size is 0; it must be"),
        ("validation: {metric: recall@0}\n", "recipe.yaml:1: validation.metric = recall@0: recall@0 is invalid"),
        ("validation: {metric: rank@1}\n", "recipe.yaml:1: validation.metric = rank@1: unknown metric 'rank@1'"),
        ("schedule: {every: 3}\n", "recipe.yaml:1: schedule.every = 3 must be left out unless schedule.name is step"),
        ("epochs: 0.5\n", "recipe.yaml:1: epochs = 0.5 must be an integer, or null; max_steps ends a run within an"),
        ("class_sampling: some\n", "recipe.yaml:1: class_sampling = some must be by_size or uniform or exhaustive"),
        ("samples_per_class: 0\nclass_sampling: uniform\n", "recipe.yaml:2: class_sampling = uniform must be left"),
        ("class_sampling: exhaustive\ncoarse_classes_per_batch: 2\n", "recipe.yaml:1: class_sampling = exhaustive"),
        ("coarse_sampling: uniform\n", "recipe.yaml:1: coarse_sampling = uniform must be left out unless coarse_c"),
        ("optimizer: {betas: [0.9]}\n", "recipe.yaml:1: optimizer.betas = [0.9] must be a list of 2, each element a"),
        ("optimizer:\n  name: sgd\n  eps: 1\n", "recipe.yaml:3: optimizer.eps = 1.0 must be left out unless"),
        ("optimizer: {momentum: 0}\n", "recipe.yaml:1: optimizer.momentum = 0.0 must be left out unless optimizer"),
        ("optimizer: {name: sgd, momentum: 0}\nschedule: {name: one_cycle, momentum_range: [0.8, 0.9]}\n",
         "recipe.yaml:2: schedule.momentum_range = (0.8, 0.9) must be null with optimizer.momentum = 0"),
        ("precision: half\n", "recipe.yaml:1: precision = half must be auto or 32 or bf16-mixed or 16-mixed"),
        ("loss: vicinal.losses.pairs.NoLoss\n", "recipe.yaml:1: loss = vicinal.losses.pairs.NoLoss is not the name"),
        ("loss:\n  class_path: MultiSimilarityLoss\n  init_args:\n    gamma: 1\n", "recipe.yaml:4: unknown key loss.g"),
        ("loss:\n  class_path: MultiSimilarityLoss\n  init_args: {alpha: -2}\n", "alpha = -2.0 must be positive"),
        ("model:\n  backbone: resnet5\n", "recipe.yaml:2: model.backbone: timm has no model 'resnet5'; nearest: resn"),
        ("optimizer: null\n", "recipe.yaml:1: optimizer is a group; write its settings below it"),
        ("loss: null\n", "recipe.yaml:1: loss = null must be the name of a Loss class"),
        ("loss: {class_path: MultiSimilarityLoss, init_args: {base: .nan}}\n", "base = nan must be a finite number"),
        ("epochs: 1\nepochs: 2\n", "recipe.yaml:2: epochs is given twice"),
        ("model: {backbone_args: &x {a: *x}}\n", "recipe.yaml:1: a value contains itself"),
        ("", "recipe.yaml:1: a recipe is a mapping"),
        ("seed: 18446744073709551616\n", "recipe.yaml:1: seed = 18446744073709551616 must be below"),
        ("samples_per_class: 1\n", "recipe.yaml:1: samples_per_class = 1 must be 0 or at least 2: NTXentLoss"),
        ("batch_size: 4\nsamples_per_class: 4\n", "recipe.yaml:1: batch_size = 4 must be above samples_per_class = 4"),
        ("fine_tuning: {rank: 4}\n", "fine_tuning.rank = 4 must be left out unless fine_tuning.method is lora"),
        ("fine_tuning: {blocks: 2}\n", "fine_tuning.blocks = 2 must be left out unless fine_tuning.method is last_bl"),
        ("ema_decay: 1\n", "recipe.yaml:1: ema_decay = 1.0 must be above 0 and below 1, or null"),
        ("optimizer: {layer_decay: 0}\n", "optimizer.layer_decay = 0.0 must be above 0 and at most 1"),
        ("features: frozen\nfine_tuning: {method: lora}\n", " must be left out unless features is"),
        ("features: frozen\noptimizer: {layer_decay: 0.5}\n", "optimizer.layer_decay = 0.5 must be left out unless"),
        ("strategy: fsdp\nprecision: 16-mixed\n", "precision = 16-mixed must be 32 or bf16-mixed with strategy = fsdp"),
        ("strategy: fsdp\ncompile: true\n", "compile = true must be false with strategy = fsdp"),
        ("strategy: fsdp\noptimizer: {name: sgd, fused: true}\n", "optimizer.fused = true must be false for sgd"),
        ("strategy: fsdp\nfeatures: frozen\n", "strategy"),
        ("compatible_weight: 2\n", "compatible_weight = 2"),
        ("compatible_with: a\ncompatible_weight: 0\n", "recipe.yaml:2: compatible_weight = 0.0 must be above 0"),
        ("features: frozen\nfreeze_backbone_epochs: 1\n", "freeze_backbone_epochs = 1 must be left out"),
        ("features: frozen\noptimizer: {lr_factors: {backbone: 0.1}}\n", "lr_factors.backbone = 0.1 must be left out"),
        ("features: frozen\ntransform: {color_jitter: 0.4}\n", "transform.color_jitter = 0.4 must be left out with"),
        ("features: frozen\ntransform: {scale: [0.4, 1]}\n", "transform.scale = (0.4, 1.0) must be left out with"),
        ("features: frozen\ndata: {augmentation: device}\n", "data.augmentation = device must be left out unless feat"),
        ("sample_selection: {noise_rate: 1}\n", "sample_selection.noise_rate = 1.0 must be from 0 to below 1"),
        ("sample_selection: {window: 3}\n", "sample_selection.method = none must be prism where"),
        ("sample_selection: {noise_rate: 0.5}\n", "sample_selection.method = none must be prism or co-teaching or co-"),
        ("sample_selection: {method: co-teaching, co_teaching_epochs: 2}\n", "must be co-teaching+ where"),
        ("transition: {quantile: 0.5}\n", "transition.quantile = 0.5 must be left out without transition.source"),
        ("transform: {longest: 48}\n", "micro_batch_size = None must be 1 with transform.longest"),
        ("transform: {longest: 48}\nmicro_batch_size: 2\n", "recipe.yaml:2: micro_batch_size = 2 must be 1 with"),
        ("micro_batch_size: 1\ntransform: {longest: 48, ratio: [0.5, 2]}\n", "transform.ratio is"),
    ):  # fmt: skip
        refused_call(re.escape(message), Recipe.load, write(tmp_path, text))


def test_one_image_per_class_is_enough_where_a_loss_compares_with_more_than_the_batch() -> None:
    memory = ["--loss=CrossBatchMemory", "--loss.loss=ContrastiveLoss", "--loss.size=64"]
    for loss in (["--loss=ArcFaceLoss"], ["--loss=ProxyAnchorLoss"], memory):
        assert Recipe.load(overrides=[*loss, "--samples_per_class=1"]).settings.samples_per_class == 1


def backbone(*overrides: str) -> str:
    return str(Recipe.load(overrides=overrides).config["model"]["backbone"])


@pytest.mark.parametrize("has_gpu", [False, True])
def test_without_a_gpu_and_a_backbone_it_is_small(monkeypatch: pytest.MonkeyPatch, has_gpu: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: has_gpu)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert backbone() == ("resnet50" if has_gpu else SMALL_BACKBONE)
    assert backbone("--accelerator=cpu") == SMALL_BACKBONE
    assert backbone("--model.backbone=resnet18") == "resnet18"
    assert backbone("--model.pretrained=weights.safetensors") == "resnet50"
    assert backbone("--model.pretrained=false", "--accelerator=cpu") == SMALL_BACKBONE
    assert backbone("--model.backbone_args={output_stride: 8}") == "resnet50"


def test_the_small_backbone_is_said_and_kept(photos: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    settings = [f"--data.source={photos}", *(each for each in SMALL if "backbone" not in each), "--epochs=1"]
    run = train(Recipe.load(overrides=settings), tmp_path / "run")
    assert f"no GPU found: using model.backbone = {SMALL_BACKBONE}" in capsys.readouterr().err
    assert Recipe.load(run.recipe).model["backbone"] == SMALL_BACKBONE
    monkeypatch.setattr("vicinal.training.recipes.recipe._has_gpu", lambda accelerator: True)
    resume(run.path, Recipe.load(overrides=settings))  # on another machine
    with pytest.raises(InputError, match=r"model.backbone = resnet18 differs from the run's own"):
        resume(run.path, Recipe.load(overrides=[*settings, "--model.backbone=resnet18"]))


def test_recipes_of_one_file_do_not_change_it(tmp_path: Path) -> None:
    file = RecipeFile.read(write(tmp_path, "loss: {class_path: MarginLoss, init_args: {beta: 1.0}}\n"))
    Recipe.load(file, ["--loss.beta=0.5", "--loss.margin=0.3", "--optimizer.lr=1"])
    assert Recipe.load(file).config == Recipe.load(tmp_path / "recipe.yaml").config


@pytest.mark.parametrize("words", [["--loss", "TripletLoss"], ["--loss.class_path=TripletLoss"]])
def test_arguments_without_a_class_are_those_of_the_class_named_later(tmp_path: Path, words: list[str]) -> None:
    assert Recipe.load(overrides=["--loss.margin", "0.7", *words]).create_loss().margin == 0.7
    for text in ("margin: 0.7", "init_args: {margin: 0.7}"):
        assert Recipe.load(write(tmp_path, f"loss: {{{text}}}"), words).create_loss().margin == 0.7


@pytest.mark.parametrize("word", ["TripletLoss", ".class_path=TripletLoss", "={class_path: TripletLoss}"])
def test_another_class_has_no_arguments_of_the_one_before(tmp_path: Path, word: str) -> None:
    path = write(tmp_path, "loss: {class_path: NTXentLoss, init_args: {temperature: 0.2}}")
    words = ["--loss", word] if word[0] == "T" else [f"--loss{word}"]
    assert Recipe.load(path, words).config["loss"] == Recipe.load(overrides=["--loss=TripletLoss"]).config["loss"]


def test_fractions_of_the_command_line_replace_those_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "data: {fractions: {train: 0.5, val: 0.2, test: 0.3}}")
    assert Recipe.load(path, ["--data.fractions={train: 0.8, val: 0.2}"]).settings.data.fractions == {
        "train": 0.8,
        "val": 0.2,
    }


def test_the_same_losses_are_offered_everywhere() -> None:
    offered = OfferedClasses().all(Loss)
    assert sorted(name for name, kind in offered.items() if kind.__module__.startswith("vicinal.")) == loss_names()
    helps = [class_help("loss", arguments_schema(kind)) for kind in offered.values()]
    assert not any(",:" in text for text in helps)


GPU_HAS_BFLOAT16 = "vicinal.training.recipes.recipe.gpu_has_bfloat16"


def precision(*overrides: str) -> str:
    loaded = Recipe.load(overrides=["--data.source=digits", *overrides])
    assert loaded.config["precision"] == loaded.settings.precision
    return loaded.settings.precision


def test_auto_is_what_the_machine_computes_fastest_with_enough_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GPU_HAS_BFLOAT16, lambda: True)
    assert precision() == precision("--precision=auto") == "bf16-mixed"
    assert precision("--accelerator=cpu") == precision("--precision=32") == "32"
    assert RefinerRecipe.load(overrides=["--embeddings=e.parquet"]).settings.precision == "32"
    monkeypatch.setattr(GPU_HAS_BFLOAT16, lambda: False)
    assert precision() == precision("--precision=auto") == "32"


def test_a_resumed_run_keeps_the_precision_it_began_with(small: list[str], tmp_path: Path, monkeypatch) -> None:
    settings = [*(each for each in small if not each.startswith("--accelerator")), "--transform.size=32", "--epochs=1"]
    with monkeypatch.context() as patch:
        patch.setattr(GPU_HAS_BFLOAT16, lambda: True)
        begun = interrupted(settings, tmp_path / "run", 1)
    with pytest.raises(InputError, match=r"precision = 32 differs from the run's own bf16-mixed"):
        resume(begun.path, Recipe.load(overrides=[*settings, "--precision=32"]))
    run = resume(begun.path, Recipe.load(overrides=settings))
    assert Recipe.load(run.recipe).settings.precision == "bf16-mixed"
