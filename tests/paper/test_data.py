"""Files, splits, samples and strokes. Tests with ``data_dir`` read the whole datasets, others small stand-ins."""

import gzip
import hashlib
import io
import re
import struct
import subprocess
import sys
import zipfile
import zlib
from importlib import resources
from pathlib import Path

import numpy as np
import pooch
import pytest
from PIL import Image

from igr.paper import strokes
from igr.paper.data import DataError, binarize, hash_order, load, load_sample, omniglot_splits, split_sizes
from igr.paper.omniglot import INK, choose_threshold, convert, count_parts, decode_png, write
from igr.paper.samples import SIZES, pack
from igr.paper.sources import CONVERTED, SOURCES, File, locate, places, read_omniglot, user_cache

TRAIN, TEST = "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def small(monkeypatch, tmp_path) -> dict[str, np.ndarray]:
    """MNIST has 60 images for training and 20 for the test, in a folder of their own."""
    rng = np.random.default_rng(0)
    images = {name: rng.integers(0, 256, (n, 28, 28), dtype=np.uint8) for name, n in ((TRAIN, 60), (TEST, 20))}
    files = tuple(
        File((name, f"{name}.gz"), hashlib.sha256(idx(array)).hexdigest(), array.shape)
        for name, array in images.items()
    )
    monkeypatch.setitem(SOURCES, "mnist", SOURCES["mnist"]._replace(files=files, validation=10, test=20))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / f"{TRAIN}.gz").write_bytes(gzip.compress(idx(images[TRAIN])))
    (tmp_path / "mnist" / TEST).write_bytes(idx(images[TEST]))
    return images


def test_reads_plain_and_compressed_files(small, tmp_path):
    dataset = load("mnist", tmp_path)
    assert (dataset.name, dataset.binary, dataset.synthetic, dataset.source) == ("mnist", True, False, "files")
    flat = {name: (array / 255 >= 0.5).reshape(len(array), 784) for name, array in small.items()}
    for part, expected in (
        (dataset.train, flat[TRAIN][:50]),
        (dataset.validation, flat[TRAIN][50:]),
        (dataset.test, flat[TEST]),
    ):
        np.testing.assert_array_equal(part, expected)
        assert part.dtype == np.uint8
        assert part.flags.writeable  # torch.from_numpy warns of what is not


def test_published_protocol_has_no_validation(small, tmp_path):
    dataset = load("mnist", tmp_path, protocol="published")
    assert [len(part) for part in (dataset.train, dataset.validation, dataset.test)] == [60, 0, 20]


def test_binarizes_at_one_half():
    grey = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(binarize(grey), grey / 255 >= 0.5)


def change(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("name", "damage", "what"),
    [
        (f"{TRAIN}.gz", lambda data: data[:-5000], r"is truncated after [\d,]+ bytes"),
        (f"{TRAIN}.gz", lambda data: change(data, len(data) - 6), r"is damaged \(CRC check failed"),
        (f"{TRAIN}.gz", lambda data: data[:30] + bytes(60) + data[90:], "is damaged"),
        (f"{TRAIN}.gz", lambda data: b"", "is no idx file"),
        (TEST, lambda data: data[:-1], "is truncated: 15,695 bytes, where 15,696 were expected"),
        (TEST, lambda data: data + b"\0", "is too long: 15,697 bytes"),
        (TEST, lambda data: change(data, 9_000), "has been altered: the sha256 of its content is"),
        (TEST, lambda data: change(data, 7), r"its shape is \(21, 28, 28\), where \(20, 28, 28\) was expected"),
        (TEST, lambda data: change(data, 2), "is no idx file of bytes with 3 axes"),
        (TEST, lambda data: b"<html>", "is no idx file"),
    ],
    ids=["cut-gzip", "bad-crc", "bad-gzip", "empty", "cut", "long", "altered", "shape", "magic", "html"],
)
def test_wrong_files_are_refused(small, tmp_path, name, damage, what):
    path = tmp_path / "mnist" / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=what) as refusal:
        load("mnist", tmp_path)
    message = str(refusal.value)
    assert message.startswith(f"{path} ")
    for advice in ("Remove it", "`igr data fetch mnist`", "--data-dir", "IGR_DATA_DIR"):
        assert advice in message


def test_missing_files_are_named(small, tmp_path, monkeypatch):
    (tmp_path / "mnist" / TEST).unlink()
    monkeypatch.setenv("IGR_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(DataError, match="MNIST was not found") as refusal:
        load("mnist")
    message = str(refusal.value)
    assert f"{tmp_path / 'mnist'} has no {TEST};" in message
    assert f"{user_cache() / 'mnist'} has no {TRAIN} and no {TEST}." in message
    assert "`igr data fetch mnist` downloads it (12 MB)" in message


def test_unknown_names_are_refused():
    with pytest.raises(DataError, match="no dataset is called 'cifar'; expected one of mnist, fmnist, omniglot"):
        load("cifar")
    with pytest.raises(DataError, match="no dataset is called 'cifar'"):
        load_sample("cifar")
    with pytest.raises(DataError, match="no protocol is called 'secret'; expected one of honest, published"):
        load("mnist", protocol="secret")


def test_places_are_searched_in_turn(small, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("IGR_DATA_DIR", raising=False)
    assert places() == [user_cache()]
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("IGR_DATA_DIR", str(tmp_path / "empty"))
    assert places() == [tmp_path / "empty", user_cache()]
    assert places("~/x") == [Path.home() / "x"]  # and nowhere else
    user_cache().parent.mkdir(parents=True, exist_ok=True)
    user_cache().symlink_to(tmp_path)
    assert locate("mnist").folder == user_cache() / "mnist"
    with pytest.raises(DataError):
        locate("mnist", tmp_path / "empty")


@pytest.mark.parametrize("xdg", ["", "/somewhere"], ids=["home", "xdg"])
def test_user_cache_is_that_of_pooch(xdg, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert user_cache() == pooch.os_cache("igr")


# The order was computed once; whatever changes it changes the meaning of every number on Omniglot.
ORDER = "8b9c56533484c232452c9b3e32d42dfa0cae9bb16fdbbd2c71c061334eda48df"
PUBLISHED_TEST = "c5e599725d95d53c"


def digest(rows: np.ndarray) -> str:
    return hashlib.sha256(rows.astype("<u4").tobytes()).hexdigest()


def test_order_of_omniglot_is_pinned():
    order = hash_order(32_460)
    assert digest(order) == ORDER
    np.testing.assert_array_equal(np.sort(order), np.arange(32_460))


def test_split_sizes():
    assert split_sizes("mnist") == split_sizes("fmnist") == (50_000, 10_000, 10_000)
    assert split_sizes("omniglot") == (21_910, 2_435, 8_115)
    assert split_sizes("mnist", "published") == (60_000, 0, 10_000)
    assert split_sizes("omniglot", "published") == (24_345, 0, 8_115)


@pytest.mark.parametrize("name", ["mnist", "fmnist"])
def test_whole_dataset(name, data_dir):
    dataset = load(name, data_dir)
    assert tuple(map(len, (dataset.train, dataset.validation, dataset.test))) == split_sizes(name)
    folder = data_dir / SOURCES[name].folder
    raw = [
        np.frombuffer(gzip.decompress((folder / f"{n}.gz").read_bytes()), np.uint8, offset=16) for n in (TRAIN, TEST)
    ]
    raw = [2 * part.astype(np.uint16) >= 255 for part in raw] if name == "mnist" else raw
    np.testing.assert_array_equal(np.concatenate([dataset.train, dataset.validation]).ravel(), raw[0])
    np.testing.assert_array_equal(dataset.test.ravel(), raw[1])
    assert dataset.binary is (name == "mnist")
    assert dataset.train.max() == (1 if name == "mnist" else 255)


def test_whole_omniglot(data_dir):
    with np.load(data_dir / "omniglot" / "omniglot-28x28.npz") as archive:
        images, alphabet = archive["images"].reshape(-1, 784), archive["alphabets"][archive["alphabet"]]
    for protocol, value in (("honest", 0), ("published", 255)):
        dataset = load("omniglot", data_dir, protocol)
        rows = omniglot_splits(alphabet, protocol)
        parts = dataset.train, dataset.validation, dataset.test
        assert tuple(map(len, parts)) == split_sizes("omniglot", protocol)
        np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(32_460))
        for part, row in zip(parts, rows, strict=True):
            np.testing.assert_array_equal(part, images[row] == value)
        assert (dataset.binary, dataset.synthetic, dataset.source) == (True, False, "files")


def test_published_omniglot_tests_on_the_evaluation_archive(data_dir):
    alphabet = read_omniglot(locate("omniglot", data_dir).files[0][1]).alphabet
    train, _, test = omniglot_splits(alphabet, "published")
    assert digest(test).startswith(PUBLISHED_TEST)
    evaluation = set(alphabet[test])
    assert len(evaluation) == 20
    assert np.isin(alphabet[train], list(evaluation)).sum() == 5_065
    assert len(set(alphabet) - evaluation) == 30


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda data: data[:-2_000], r"is truncated or damaged \("),
        (lambda data: change(data, 100_000), "damaged|altered"),
        (lambda data: b"PK" + bytes(50), r"is truncated or damaged \("),
    ],
    ids=["cut", "altered", "no zip"],
)
def test_wrong_omniglot_is_refused(damage, what, data_dir, tmp_path):
    path = tmp_path / "omniglot" / "omniglot-28x28.npz"
    path.parent.mkdir()
    path.write_bytes(damage((data_dir / "omniglot" / path.name).read_bytes()))
    with pytest.raises(DataError, match=what) as refusal:
        load("omniglot", tmp_path)
    assert str(refusal.value).startswith(f"{path} ")
    assert "`igr data fetch omniglot`" in str(refusal.value)


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        ({"images": np.zeros((3, 28, 28), np.uint8)}, "holds no array called 'alphabet'"),
        (
            dict.fromkeys(("images", "alphabet", "character", "alphabets"), np.zeros((3, 28, 28), np.uint8)),
            r"holds images of uint8 \(3, 28, 28\), where uint8 \(32460, 28, 28\) were expected",
        ),
        ({"images": np.array([{}, {}], dtype=object)}, "is truncated or damaged"),  # a pickle, which is not opened
    ],
    ids=["arrays", "shape", "pickle"],
)
def test_other_archives_are_not_omniglot(arrays, what, tmp_path):
    (tmp_path / "omniglot").mkdir()
    np.savez(tmp_path / "omniglot" / "omniglot-28x28.npz", **arrays)
    with pytest.raises(DataError, match=what):
        load("omniglot", tmp_path)


# Samples


@pytest.mark.parametrize("name", list(SIZES))
def test_samples_are_the_first_of_each_split(name, data_dir):
    whole, sample = load(name, data_dir), load_sample(name)
    for part in ("train", "validation", "test"):
        few = getattr(sample, part)
        np.testing.assert_array_equal(few, getattr(whole, part)[: len(few)])
    with resources.files("igr.paper.samples").joinpath(f"{name}.npz").open("rb") as file, np.load(file) as bundled:
        rebuilt = pack(name, whole.train, whole.validation, whole.test)
        assert set(rebuilt) == set(bundled.files)
        for key, array in rebuilt.items():
            np.testing.assert_array_equal(array, bundled[key])


@pytest.mark.parametrize("name", ["mnist", "fmnist", "omniglot"])
def test_samples_need_nothing(name, monkeypatch, tmp_path):
    monkeypatch.setenv("IGR_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sample, published = load_sample(name), load_sample(name, "published")
    parts = sample.train, sample.validation, sample.test
    assert tuple(map(len, parts)) == SIZES.get(name, (980, 210, 210))
    for part in parts:
        assert (part.dtype, part.shape[1], part.flags.writeable) == (np.uint8, 784, True)
        assert set(np.unique(part)) == {0, 1} if sample.binary else part.max() > 200
    assert sample.binary is (name != "fmnist")
    assert sample.synthetic is (name == "omniglot")
    assert sample.source == ("strokes" if sample.synthetic else "bundled sample")
    assert (len(published.train), len(published.validation)) == (len(sample.train) + len(sample.validation), 0)
    np.testing.assert_array_equal(published.test, 1 - sample.test if sample.synthetic else sample.test)


def test_samples_are_small_and_attributed():
    folder = resources.files("igr.paper.samples")
    assert sum(len(folder.joinpath(f"{name}.npz").read_bytes()) for name in SIZES) < 700_000
    words = folder.joinpath("ATTRIBUTION.md").read_text("utf-8")
    for owner in ("LeCun", "Cortes", "Burges", "Zalando SE", "Share Alike 3.0"):
        assert owner in words


def test_strokes():
    images = strokes.draw(characters=12, drawers=6, seed=3)
    assert (images.shape, images.dtype) == ((12, 6, 784), np.uint8)
    np.testing.assert_array_equal(images, strokes.draw(12, 6, seed=3))
    assert (images != strokes.draw(12, 6, seed=4)).any()
    assert set(np.unique(images)) == {0, 1}
    assert images.any(axis=-1).all()
    # drawings of one character have more ink in common than those of two
    ink = images / np.linalg.norm(images, axis=-1, keepdims=True)
    common = np.einsum("adp,bep->abde", ink, ink).mean((2, 3))
    assert common.diagonal().mean() > 1.5 * common[~np.eye(12, dtype=bool)].mean()


def test_strokes_have_about_the_ink_of_omniglot():
    assert strokes.draw(characters=70, drawers=20).mean() == pytest.approx(INK, abs=0.01)


# Conversion of the archives


def png(pixels: np.ndarray, depth: int, filters: list[int]) -> bytes:
    """A grey PNG file, each row with a filter of its own."""
    rows = np.packbits(pixels, axis=1) if depth == 1 else pixels
    raw, above = b"", np.zeros(rows.shape[1], int)
    for row, kind in zip(rows.astype(int), filters, strict=True):
        left, corner = np.append(0, row[:-1]), np.append(0, above[:-1])
        near = left + above - corner
        distances = np.abs(np.stack([near - left, near - above, near - corner]))
        paeth = np.choose(distances.argmin(0), [left, above, corner])
        guess = [0 * row, left, above, (left + above) // 2, paeth][kind]
        raw += bytes([kind]) + ((row - guess) % 256).astype(np.uint8).tobytes()
        above = row
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], depth, 0, 0, 0, 0)
    packed = zlib.compress(raw)
    chunks = [(b"IHDR", header), (b"tEXt", b"a\0b"), (b"IDAT", packed[:40]), (b"IDAT", packed[40:]), (b"IEND", b"")]
    parts = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("depth", [1, 8])
def test_png_files_are_decoded_whatever_their_filters(depth):
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 2**depth, (35, 53), dtype=np.uint8)
    data = png(pixels, depth, [0, 1, 2, 3, 4] * 7)
    np.testing.assert_array_equal(decode_png(data), pixels)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(data))), pixels)
    file = io.BytesIO()
    Image.fromarray(pixels * (255 if depth == 1 else 1)).convert("1" if depth == 1 else "L").save(file, "PNG")
    np.testing.assert_array_equal(decode_png(file.getvalue()), pixels)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda data: b"GIF89a" + data, "no PNG file"),
        (lambda data: change(data, 60), "a checksum does not fit"),
        (lambda data: data[:33], "zlib|incomplete"),
        (lambda data: change_header(data, 9, 2), "depth 1, colour type 2 and interlace 0 is not read here"),
    ],
    ids=["gif", "crc", "cut", "colour"],
)
def test_other_png_files_are_refused(damage, what):
    data = png(np.zeros((5, 5), np.uint8), 1, [0] * 5)
    with pytest.raises((ValueError, zlib.error), match=what):
        decode_png(damage(data))


def change_header(data: bytes, at: int, value: int) -> bytes:
    header = data[16 : 16 + at] + bytes([value]) + data[17 + at : 29]
    return data[:16] + header + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + data[33:]


def test_parts_are_counted():
    ink = np.random.default_rng(2).random((105, 105)) < 0.3
    fine = ink.repeat(4, axis=0).repeat(4, axis=1)  # 420 = 28 * 15
    np.testing.assert_array_equal(count_parts(ink), fine.reshape(28, 15, 28, 15).sum((1, 3)))
    assert count_parts(np.ones((105, 105), bool)).min() == 225


def test_threshold_brings_the_ink_nearest():
    counts = np.random.default_rng(3).binomial(225, 0.2, 100_000)
    threshold = choose_threshold(np.bincount(counts, minlength=226))
    errors = [abs((counts >= t).mean() - INK) for t in range(1, 226)]
    assert threshold == 1 + errors.index(min(errors))


@pytest.fixture
def archives(monkeypatch, tmp_path):
    """Two small archives, of two alphabets and of one, and the drawings by (alphabet, character, drawer)."""
    file = SOURCES["omniglot"].files[0]._replace(shape=(80, 28, 28))
    monkeypatch.setitem(SOURCES, "omniglot", SOURCES["omniglot"]._replace(files=(file,), validation=6, test=20))
    characters = ("Latin", 1), ("Latin", 2), ("Angelic", 1), ("Tifinagh", 1)
    shapes = strokes.draw(4, 20, seed=5).reshape(4, 20, 28, 28).repeat(4, axis=2).repeat(4, axis=3)[..., 3:108, 3:108]
    drawings = {(*key, d + 1): shapes[n, d] for n, key in enumerate(characters) for d in range(20)}
    paths = [tmp_path / "images_background.zip", tmp_path / "images_evaluation.zip"]
    for path in paths:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"__MACOSX/{path.stem}/Latin/character01/._0001_01.png", b"not a drawing")
            for (alphabet, character, drawer), ink in drawings.items():
                if (alphabet == "Angelic") == (path == paths[1]):
                    name = f"{path.stem}/{alphabet}/character{character:02}/0700_{drawer:02}.png"
                    archive.writestr(name, png(1 - ink, 1, [0] * 105))
    return paths, drawings


def test_archives_become_one_file(archives, tmp_path):
    paths, drawings = archives
    seen = []
    write(paths, tmp_path / CONVERTED, lambda *args: seen.append(args))
    with np.load(tmp_path / CONVERTED, allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    keys = sorted(drawings)
    assert list(arrays["alphabets"]) == ["Angelic", "Latin", "Tifinagh"]
    assert [(arrays["alphabets"][a], c) for a, c in zip(arrays["alphabet"], arrays["character"], strict=True)] == [
        k[:2] for k in keys
    ]
    counts = np.stack([count_parts(drawings[key] == 1) for key in keys])
    np.testing.assert_array_equal(arrays["images"] == 0, counts >= arrays["threshold"])
    assert set(np.unique(arrays["images"])) == {0, 255}
    assert (arrays["images"] == 0).mean() == pytest.approx(INK, abs=0.01)
    assert {words for words, _, _ in seen} == {"converting to 28x28"}
    assert 0 < max(done for _, done, _ in seen) <= seen[0][2] == sum(path.stat().st_size for path in paths)
    again = convert(paths[::-1])
    for key, array in arrays.items():
        np.testing.assert_array_equal(array, again[key])


def test_converted_omniglot_says_so(archives, tmp_path):
    (tmp_path / "omniglot").mkdir()
    write(archives[0], tmp_path / "omniglot" / CONVERTED)
    dataset = load("omniglot", tmp_path)
    assert dataset.source == "files, converted"
    assert [len(part) for part in (dataset.train, dataset.validation, dataset.test)] == [54, 6, 20]


def test_altered_conversion_is_refused(archives, tmp_path):
    (tmp_path / "omniglot").mkdir()
    arrays = convert(archives[0])
    arrays["images"][3, 4, 5] ^= 255
    np.savez_compressed(tmp_path / "omniglot" / CONVERTED, **arrays)
    with pytest.raises(DataError, match=f"{re.escape(CONVERTED)} has been altered"):
        load("omniglot", tmp_path)


def test_incomplete_archives_are_refused(archives, tmp_path):
    with pytest.raises(DataError, match="hold 60 drawings, where 80 were expected"):
        convert(archives[0][:1])
    archives[0][1].write_bytes(archives[0][1].read_bytes()[:-30])
    with pytest.raises(DataError, match=r"images_evaluation.zip is damaged \(File is not a zip file\)"):
        write(archives[0], tmp_path / CONVERTED)
    assert not (tmp_path / CONVERTED).exists()


def test_no_torch():
    program = (
        "import sys, igr.paper.download, igr.paper.omniglot; from igr.paper.data import load_sample\n"
        "load_sample('mnist'); load_sample('omniglot'); sys.exit('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
