import math
import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.refusals import refused_call
from tests.retrieval.reranking.rerank_references import clusters, similarities, unit
from vicinal.data import ImageTransform, Table
from vicinal.evaluation import choose_weight, evaluate
from vicinal.models import Embedder
from vicinal.retrieval import LocalEncoder, LocalReranking, PatchMatches, StoredFeatures, rerank
from vicinal.retrieval.reranking import local
from vicinal.retrieval.reranking.local_features import encode

GRID = (3, 4)


def patches(images: int, classes: int, seed: int, dim: int = 8) -> StoredFeatures:
    """Codes of patches of which some are near those of other images of the class; the third of each image is flat."""
    rng = np.random.default_rng(seed)
    prototypes = rng.standard_normal((classes, math.prod(GRID), dim))
    vectors = prototypes[np.arange(images) % classes] + 0.6 * rng.standard_normal((images, math.prod(GRID), dim))
    for image in vectors:
        rng.shuffle(image)
    vectors[:, 2] = 0
    return StoredFeatures(encode(vectors), GRID)


def slow_score(query: np.ndarray, image: np.ndarray, min_similarity: float) -> float:
    """The sum of similarities of mutual nearest patches per patch, in float64 with loops; the first of equal ones."""
    query, image = (unit(codes.astype(np.float64) - 128) for codes in (query, image))
    products, total = query @ image.T, 0.0
    for i, row in enumerate(products):
        j = int(np.argmax(row))
        if int(np.argmax(products[:, j])) == i and row[j] >= min_similarity:
            total += row[j]
    return total / len(query)


def slow_scores(
    queries: np.ndarray, gallery: np.ndarray, features: tuple[StoredFeatures, StoredFeatures], own: np.ndarray,
    method: LocalReranking,
) -> np.ndarray:  # fmt: skip
    scores, codes = similarities(queries, gallery), [each.codes(np.arange(len(each))) for each in features]
    for i, row in enumerate(scores):
        row[own[i : i + 1][own[i : i + 1] >= 0]] = -np.inf
        for j in np.argsort(-row, kind="stable")[: min(method.k, int(np.isfinite(row).sum()))]:
            row[j] += method.weight * slow_score(codes[0][i], codes[1][j], method.min_similarity)
    return scores


def check(found, wanted: np.ndarray) -> None:
    k = found.ids.shape[1]
    np.testing.assert_allclose(found.scores, -np.sort(-wanted, axis=1)[:, :k], atol=2e-6)
    np.testing.assert_allclose(found.scores, np.take_along_axis(wanted, found.ids, axis=1), atol=2e-6)


METHODS = [LocalReranking(k=7), LocalReranking(weight=2.0, min_similarity=0.2), LocalReranking(k=1, weight=0.1)]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_one_set_searches_itself_and_queries_a_gallery_as_the_slow_reference(method: LocalReranking) -> None:
    (vectors, _), features, own = clusters(40, 5, seed=1), patches(40, 5, seed=2), np.arange(40)
    found = rerank(vectors, vectors, 39, method.with_features(features), exclude_self=own)
    check(found, slow_scores(vectors, vectors, (features, features), own, method))
    (queries, _), (gallery, _) = clusters(9, 5, seed=1), clusters(40, 5, seed=3)
    features, own = (patches(9, 5, seed=4), patches(40, 5, seed=5)), np.full(9, -1)
    wanted = slow_scores(queries, gallery, features, own, method)
    check(rerank(queries, gallery, 40, method.with_features(*features)), wanted)
    some = np.arange(0, 40, 3)  # of a gallery, as with a condition
    wanted = slow_scores(queries, gallery[some], (features[0], features[1].take(some)), own, method)
    check(rerank(queries, gallery[some], 14, method.with_features(*features).among(some)), wanted)


def test_evaluation_ranks_by_the_scores_of_the_slow_reference() -> None:
    vectors, labels = clusters(60, 6, seed=7)
    features, method = patches(60, 6, seed=8), LocalReranking(k=20, weight=1.5, min_similarity=0.3)
    is_query = np.arange(60) % 3 == 0
    table = Table(pd.DataFrame({"label": labels, "is_query": is_query, "is_gallery": ~is_query}))
    queries, gallery = np.flatnonzero(is_query), np.flatnonzero(~is_query)
    parts = features.take(queries), features.take(gallery)
    scores = slow_scores(vectors[queries], vectors[gallery], parts, np.full(len(queries), -1), method)
    hits = labels[gallery[np.argsort(-scores, axis=1)[:, 0]]] == labels[queries]
    has_match = np.isin(labels[queries], labels[gallery])
    found = evaluate(vectors, table, recall_at=[1], rerank=method.with_features(features))
    assert found.metrics["recall@1"] == pytest.approx(hits[has_match].mean())
    assert (found.stage, "weight=1.5" in str(found.method)) == ("reranked", True)


def test_weight_zero_ranks_by_similarity_and_compares_no_patches(monkeypatch) -> None:
    vectors, _ = clusters(30, 5, seed=0)
    monkeypatch.setattr(local, "mutual_nearest", None)
    method = LocalReranking(weight=0).with_features(patches(30, 5, seed=0))
    found = rerank(vectors, vectors, 9, method, exclude_self=np.arange(30))
    order = np.argsort(-similarities(vectors, vectors) + 9 * np.eye(30), axis=1)
    np.testing.assert_array_equal(found.ids, order[:, :9])


def test_the_result_does_not_depend_on_block_sizes(monkeypatch) -> None:
    vectors, features = clusters(70, 5, seed=1)[0], patches(70, 5, seed=2)
    method = LocalReranking(k=30).with_features(features)
    wanted = rerank(vectors, vectors, 25, method, exclude_self=np.arange(70))
    monkeypatch.setattr(local, "MAX_SIMILARITIES", 300)
    monkeypatch.setattr(sys.modules[rerank.__module__], "BLOCK_QUERIES", 7)
    found = rerank(vectors, vectors, 25, method, exclude_self=np.arange(70), chunk_size=13)
    np.testing.assert_array_equal(found.ids, wanted.ids)
    np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-6)


def test_of_equal_patches_the_first_ones_match_and_flat_ones_never() -> None:
    query = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]], np.float32)
    images = np.array([[[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]], [[0.0, 0.0]] * 3], np.float32)
    matches, found = local.mutual_nearest(query, images, 1e-6)
    assert matches.tolist() == [[1, -1, -1], [-1, -1, -1]]
    assert found.tolist() == [[1, 0, 0], [0, 0, 0]]


def test_patches_that_agree_with_a_rotation_and_no_others() -> None:
    pytest.importorskip("cv2")
    rng, angle = np.random.default_rng(0), 0.5
    points = rng.uniform(0.2, 0.8, (30, 2))
    turned = (points - 0.5) @ np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]) * 0.8 + 0.5
    turned[20:] = rng.uniform(0, 1, (10, 2))
    matches = PatchMatches(points, turned, np.arange(30, dtype=np.float32), (16, 16))
    assert set(range(20)) <= set(matches.inliers().similarities.astype(int))
    assert len(matches.inliers()) <= 24
    assert len(PatchMatches(points[:2], turned[:2], np.ones(2, np.float32), (16, 16)).inliers()) == 0


def test_the_geometric_check_lowers_scores_of_scattered_matches() -> None:
    pytest.importorskip("cv2")
    rng = np.random.default_rng(0)
    image = rng.standard_normal((64, 8))
    codes = np.stack([encode(image), encode(image), encode(rng.permutation(image))])  # the last one is shuffled
    method = LocalReranking(geometric=True).with_features(StoredFeatures(codes, (8, 8)))
    same, shuffled = method.sums(0, np.array([1, 2]))
    assert same == pytest.approx(1)
    assert shuffled < 0.3
    assert len(method.matches(0, np.array([1]))[0]) == 64


def test_bad_input_is_one_line(pictures) -> None:
    table, missing = Table(pd.DataFrame({"label": [0, 0, 1, 1]})), LocalReranking()
    transform, of_four = ImageTransform(size=64), missing.with_features(patches(4, 2, 0))
    vit = Embedder("test_vit", dim=8, pretrained=False, transform=transform, backbone_args={"dynamic_img_size": True})
    inception = Embedder("bn_inception", dim=8, pretrained=False, transform=transform)
    for make, message in (
        (lambda: LocalReranking(k=0), "k = 0"),
        (lambda: LocalReranking(weight=-1), "weight = -1"),
        (lambda: LocalReranking(min_similarity=0), "min_similarity = 0 must be a number above 0 and at most 1"),
        (lambda: LocalReranking(geometric="yes"), "geometric"),
        (lambda: rerank(np.eye(3), np.eye(3), 1, missing), "has no local features; give them by"),
        (lambda: rerank(np.eye(3), np.eye(3), 1, of_four), "local features of 4 queries, but 3 embeddings; there must"),
        (lambda: StoredFeatures(np.zeros((2, 4), np.uint8), (2, 2)), r"must be uint8 \[images, patches, dimensions\]"),
        (lambda: StoredFeatures(np.zeros((2, 4, 3)), (2, 2)), r"are float64 \[2, 4, 3\]; they must be uint8"),
        (lambda: StoredFeatures(np.zeros((2, 4, 3), np.uint8), (2, 3)), "4 patches do not fit a grid of 2 x 3"),
        (lambda: LocalEncoder.fit(vit, pictures, layer="first"), "is 'first'; choose last or previous"),
        (lambda: LocalEncoder.fit(vit, pictures, size=0), "local features is 0; it must be an integer, at least 1"),
        (lambda: LocalEncoder.fit(vit, pictures, size=70), "cuts images into 16 px"),
        (lambda: LocalEncoder.fit(inception, pictures), "bn_inception does not give its feature maps, so it has no"),
        (lambda: choose_weight(np.eye(4), table, of_four, [0.0]), r"weights are \[0\.0\]; give one or more above 0"),
    ):
        refused_call(message, make)


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    return [Image.effect_noise((80, 60), 20 + 10 * seed).convert("RGB") for seed in range(6)]


@pytest.mark.parametrize(
    ("backbone", "layer", "grid", "channels"),
    [
        ("test_resnet", "previous", (4, 4), 192),
        ("test_resnet", "last", (2, 2), 96),
        ("test_vit", "previous", (4, 4), 64),
    ],
)
def test_local_features_are_the_patches_of_the_feature_map(pictures, backbone, layer, grid, channels) -> None:
    model = Embedder(backbone, dim=8, pretrained=False, transform=ImageTransform(size=64)).eval()
    encoder = LocalEncoder.fit(model, pictures, dim=None, layer=layer)
    assert (encoder.grid, encoder.dim) == (grid, channels)
    pixels = model.transform.test()(pictures[0])[None]
    maps = model.backbone.forward_intermediates(pixels, indices=2, intermediates_only=True)[layer == "last"]
    wanted = unit(maps[0].flatten(1).T.detach().numpy())
    found = StoredFeatures(encoder.encode(pictures), encoder.grid).vectors(np.array([0]))[0]
    np.testing.assert_allclose(found, wanted, atol=0.01)


def test_whitened_features_have_the_asked_dimensions_and_are_computed_once(pictures, tmp_path, monkeypatch) -> None:
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / f"{number}.png")
    table = Table(pd.DataFrame({"path": [f"{number}.png" for number in range(6)]}), root=str(tmp_path))
    model = Embedder("test_resnet", dim=8, pretrained=False, transform=ImageTransform(size=64)).eval()
    encoder = LocalEncoder.fit(model, table, dim=7, size=96)
    assert encoder.shape == (36, 7)
    features, rows = encoder.features(table), np.array([4, 1, 4])
    wanted = features.codes(rows)
    np.testing.assert_array_equal(wanted, encoder.encode([pictures[4], pictures[1], pictures[4]]))
    monkeypatch.setattr(LocalEncoder, "encode", None)
    np.testing.assert_array_equal(features.codes(rows), wanted)


def test_the_weight_with_the_best_map_at_r_is_chosen_and_0_where_patches_do_not_help(monkeypatch) -> None:
    vectors, labels = clusters(120, 24, seed=0)[0], np.arange(120) // 5  # vectors that tell nothing of the classes
    table = Table(pd.DataFrame({"label": labels}))
    helping = StoredFeatures(patches(24, 24, seed=1).codes(labels), GRID)  # the same for all images of a class
    counted = []
    compare = LocalReranking.sums
    monkeypatch.setattr(LocalReranking, "sums", lambda self, *given: (counted.append(1), compare(self, *given))[1])
    choice = choose_weight(vectors, table, LocalReranking(k=119).with_features(helping))
    assert len(counted) == 120  # once for all weights
    assert choice.weight == max(choice.scores, key=choice.scores.__getitem__) > 0
    method = LocalReranking(k=119, weight=choice.weight).with_features(helping)
    assert evaluate(vectors, table, rerank=method).metrics["mAP@R"] == choice.scores[choice.weight] > choice.plain
    assert choice.gain_interval[0] > 0
    useless = choose_weight(vectors, table, LocalReranking().with_features(patches(120, 120, seed=1)))
    assert useless.weight == 0
    assert "does not certainly help" in str(useless)
