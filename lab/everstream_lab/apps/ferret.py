"""Finds the pictures of a collection that look like a given one: four stages, none like another.

A picture is cut into regions; each becomes fourteen numbers; an index gives the pictures with
regions near those; and the earth mover's distance, which is dear, ranks just these. The index is
only read, so every shard has its own.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import faiss
import numpy as np
from skimage.segmentation import felzenszwalb

import everstream as es
from everstream_lab.apps.application import Application, Tell, json_line
from everstream_lab.apps.generators.pictures import make_pictures
from everstream_lab.apps.models import once_per_thread

cv2.setNumThreads(1)
faiss.omp_set_num_threads(1)
KIND_SIZE = 12
"""Pictures of a collection that look alike."""


class Amount(NamedTuple):
    """How many pictures there are, how many are asked about, and how many answers each gets."""

    collection: int
    queries: int
    answers: int = 10


AMOUNTS = {
    "test": Amount(60, 12),
    "small": Amount(300, 100),
    "medium": Amount(1_000, 500),
    "large": Amount(3_000, 1_500),
    "huge": Amount(10_000, 3_500, answers=50),
}


class Regions(NamedTuple):
    """A picture as its regions: fourteen numbers each, and its part of the picture."""

    path: str
    features: Any
    weights: Any


class Collection(NamedTuple):
    """All pictures to choose from: the index of their regions, and whose each region is."""

    answers: int
    names: list[str]
    owners: Any
    signatures: list[Any]
    index: Any


def queries(folder: Path) -> list[str]:
    return sorted(map(str, (folder / "queries").glob("*.png")))


def segment(path: str) -> tuple[str, Any, Any]:
    image = cv2.imread(path)
    return path, image, felzenszwalb(image, scale=200, sigma=0.8, min_size=120)


def extract(cut: tuple[str, Any, Any]) -> Regions:
    path, image, labels = cut
    features, weights = [], []
    for label in range(labels.max() + 1):
        rows, columns = np.nonzero(labels == label)
        features.append(_features(image, rows, columns))
        weights.append(len(rows) / labels.size)
    return Regions(path, np.array(features, np.float32), np.array(weights, np.float32))


def _features(image: Any, rows: Any, columns: Any) -> list[float]:
    """Mean, spread and skew of the three colours, and where and how large the region is."""
    height, width = image.shape[:2]
    colours = image[rows, columns] / 255
    mean, spread = colours.mean(axis=0), colours.std(axis=0)
    skew = np.cbrt(((colours - mean) ** 3).mean(axis=0))
    tall, wide = np.ptp(rows) + 1, np.ptp(columns) + 1
    place = [columns.mean() / width, rows.mean() / height]
    return [*mean, *spread, *skew, *place, wide / width, tall / height, len(rows) / (tall * wide)]


def query(regions: Regions) -> tuple[Regions, list[int]]:
    """The pictures with a region near one of these: twice as many regions as answers are looked at."""
    known = collection(str(Path(regions.path).parents[1]))
    _, near = known.index.search(regions.features, 2 * known.answers)
    return regions, np.unique(known.owners[near[near >= 0]]).tolist()


def rank(asked: tuple[Regions, list[int]]) -> dict[str, Any]:
    regions, candidates = asked
    known = collection(str(Path(regions.path).parents[1]))
    own = _signature(regions)
    ranked = sorted(
        (cv2.EMD(own, known.signatures[candidate], cv2.DIST_L2)[0], known.names[candidate])
        for candidate in candidates
    )
    return {
        "query": Path(regions.path).name,
        "similar": [name for _, name in ranked[: known.answers]],
    }


def _signature(regions: Regions) -> Any:
    return np.column_stack([regions.weights, regions.features]).astype(np.float32)


@once_per_thread
def collection(folder: str) -> Collection:
    """The index, as `make_input` has left it in the folder."""
    content = json.loads(Path(folder, "collection.json").read_text())
    kept = np.load(Path(folder, "collection.npz"))
    owners, signatures = kept["owners"], kept["signatures"]
    index = faiss.IndexFlatL2(signatures.shape[1] - 1)
    index.add(np.ascontiguousarray(signatures[:, 1:]))
    of_each = np.split(signatures, np.flatnonzero(np.diff(owners)) + 1)
    return Collection(content["answers"], content["names"], owners, of_each, index)


def sequential(folder: Path, output: Path) -> None:
    answers = [rank(query(extract(segment(path)))) for path in queries(folder)]
    output.write_bytes(b"".join(sorted(map(json_line, answers))))


def pipeline(folder: Path, parts: Path, *, shards: int = 2, batch: int = 1) -> es.Pipeline:
    ferret = es.Pipeline("ferret")
    source = ferret.source(es.FromList(queries(folder), batch=batch), name="queries")
    stream: es.Stream[Any] = source.on_demand().map(segment, name="segment", shards=shards)
    stream = stream.on_demand().map(extract, name="extract", shards=shards)
    stream = stream.on_demand().map(query, name="query", shards=shards)
    return stream.on_demand().map(rank, name="rank", shards=shards).sink(es.JsonLines(parts))


@es.annotated
def annotated(folder: Path, parts: Path, *, shards: int = 2, batch: int = 1) -> None:
    with es.ToStream(batch=batch):
        for path in queries(folder):
            with es.Stage(replicate=shards, name="extract"):
                found: Any = extract(segment(path))
            with es.Stage(replicate=shards, outputs=[found], sink=es.JsonLines(parts)):
                found = rank(query(found))


def make_input(amount: Amount, folder: Path, tell: Tell) -> None:
    """`collection/` with its index, and `queries/`: other pictures of the same kinds."""
    kinds = amount.collection // KIND_SIZE
    others = range(amount.collection, amount.collection + amount.queries)
    make_pictures(folder / "collection", range(amount.collection), kinds)
    make_pictures(folder / "queries", others, kinds)
    owners: list[int] = []
    signatures, names = [], []
    for number, path in enumerate(sorted((folder / "collection").glob("*.png"))):
        signature = _signature(extract(segment(str(path))))
        owners += [number] * len(signature)
        signatures.append(signature)
        names.append(path.name)
        tell(number + 1, amount.collection)
    content = {"answers": amount.answers, "names": names}
    (folder / "collection.json").write_text(json.dumps(content))
    np.savez(folder / "collection.npz", owners=owners, signatures=np.concatenate(signatures))


APPLICATION = Application(
    name="ferret",
    title="pictures that look alike",
    sizes=AMOUNTS,
    make_input=make_input,
    items=queries,
    stages=(segment, extract, query, rank),
    sequential=sequential,
    pipeline=pipeline,
    annotated=annotated.pipeline,
    result="similar.jsonl",
    witness="queries",
)
