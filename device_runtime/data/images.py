"""A folder per class with images of one size, read into [samples, channels, height, width] bytes.

Labels: folder names that are whole numbers are the labels themselves; otherwise the place of the name in
`classes.txt` (one name per line), or without that file in alphabetical order. Devices that lack a class need
one of the first two, so that all devices number the classes alike.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.data import pixels
from fedwright.device_runtime.data.local import Raw
from fedwright.device_runtime.data.tables import existing
from fedwright.protocol.errors import DataError

_OTHER_SUFFIXES = {".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}


def read_folder(place: str, options: dict[str, str]) -> Raw:
    """All images below a folder of class folders."""
    root = existing(place)
    if not root.is_dir():
        raise DataError(f"{place}: is not a folder; images: takes a folder with one folder per class")
    labels, classes = _label_of_folders(root)
    files = [(path, labels[name]) for name in sorted(labels) for path in _images(root / name)]
    if not files:
        raise DataError(f"{place}: holds no images; put them into one folder per class")
    x: NDArray[np.uint8] = np.empty((len(files), *read_image(files[0][0]).shape), np.uint8)
    for row, (path, _) in enumerate(files):
        image = read_image(path)
        if image.shape != x.shape[1:]:
            raise DataError(
                f"{path}: has shape {list(image.shape)} but the first image has {list(x.shape[1:])}; "
                f"bring all images to one size and mode"
            )
        x[row] = image
    return Raw(x, np.array([label for _, label in files], np.int64), classes=classes)


def read_image(path: Path) -> NDArray[np.uint8]:
    """One image as [channels, height, width]."""
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return _read_npy(path)
    if suffix in (".pgm", ".ppm"):
        return pixels.to_channels(pixels.read_netpbm(path.read_bytes(), where=str(path)))
    if suffix == ".png":
        found = pixels.read_png(path.read_bytes(), where=str(path))
        if found is not None:
            return pixels.to_channels(found)
    return pixels.to_channels(_read_with_pillow(path))


def _label_of_folders(root: Path) -> tuple[dict[str, int], int]:
    names = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise DataError(f"{root}: holds no class folders; make one folder per class")
    if all(name.isdecimal() for name in names):
        return {name: int(name) for name in names}, max(int(name) for name in names) + 1
    listing = root / "classes.txt"
    known = listing.read_text(encoding="utf-8").split("\n") if listing.exists() else names
    known = [name.strip() for name in known if name.strip()]
    missing = [name for name in names if name not in known]
    if missing:
        raise DataError(f"{listing}: does not list the class folder {missing[0]!r}; add a line with its name")
    return {name: known.index(name) for name in names}, len(known)


def _images(folder: Path) -> list[Path]:
    suffixes = {".npy", ".pgm", ".ppm", ".png", *_OTHER_SUFFIXES}
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in suffixes)


def _read_npy(path: Path) -> NDArray[np.uint8]:
    try:
        image: NDArray[np.uint8] = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as err:
        raise DataError(f"{path}: is not a readable numpy array ({err})") from err
    if image.dtype != np.uint8 or image.ndim not in (2, 3):
        raise DataError(f"{path}: must hold bytes [height, width] or [channels, height, width]")
    return image[None] if image.ndim == 2 else image


def _read_with_pillow(path: Path) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError as err:
        raise DataError(
            f"{path}: needs Pillow to be read; pip install pillow, or convert to 8-bit PNG without interlacing"
        ) from err
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("L" if image.mode in ("1", "L", "LA", "I;16") else "RGB"))
    except (OSError, ValueError, SyntaxError) as err:
        raise DataError(f"{path}: cannot be read as an image ({err})") from err
