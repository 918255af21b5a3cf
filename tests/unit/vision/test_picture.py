"""Image files to pixels."""

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from npuserve.errors import RequestError
from npuserve.vision.picture import decode_picture


def corners() -> NDArray[np.uint8]:
    """A picture, 40 wide and 24 high, with a colour in each quarter."""
    pixels = np.zeros((24, 40, 3), dtype=np.uint8)
    pixels[:12, :20] = (255, 0, 0)
    pixels[:12, 20:] = (0, 255, 0)
    pixels[12:, :20] = (0, 0, 255)
    pixels[12:, 20:] = (255, 255, 0)
    return pixels


def saved(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["PNG", "WEBP", "GIF"])
def test_lossless_formats_give_the_pixels(form: str) -> None:
    data = saved(Image.fromarray(corners()), form, **({"lossless": True} if form == "WEBP" else {}))
    np.testing.assert_array_equal(decode_picture(data), corners())


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_undone(orientation: int) -> None:
    upright = Image.fromarray(corners())
    # What a camera held that way stores: the inverse of what viewers do.
    undo = {
        1: (),
        2: (Image.Transpose.FLIP_LEFT_RIGHT,),
        3: (Image.Transpose.ROTATE_180,),
        4: (Image.Transpose.FLIP_TOP_BOTTOM,),
        5: (Image.Transpose.TRANSPOSE,),
        6: (Image.Transpose.ROTATE_90,),
        7: (Image.Transpose.TRANSVERSE,),
        8: (Image.Transpose.ROTATE_270,),
    }[orientation]
    stored = upright
    for step in undo:
        stored = stored.transpose(step)
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = decode_picture(saved(stored, "JPEG", exif=exif, quality=100, subsampling=0))
    assert pixels.shape == (24, 40, 3)
    assert np.abs(pixels.astype(int) - corners()).mean() < 3


def test_grey_becomes_rgb() -> None:
    grey = np.arange(0, 200, dtype=np.uint8).reshape(10, 20)
    pixels = decode_picture(saved(Image.fromarray(grey), "PNG"))
    np.testing.assert_array_equal(pixels, np.repeat(grey[:, :, None], 3, axis=2))


def test_sixteen_bit_grey_keeps_its_range() -> None:
    grey = np.linspace(0, 65535, 200).astype(np.uint16).reshape(10, 20)
    pixels = decode_picture(saved(Image.fromarray(grey), "PNG"))
    assert np.abs(pixels[:, :, 0].astype(float) - grey / 257.0).max() <= 1
    assert pixels.max() == 255


def test_bilevel_and_palette_become_rgb() -> None:
    bilevel = Image.fromarray(corners()[:, :, 0]).convert("1")
    assert set(np.unique(decode_picture(saved(bilevel, "PNG")))) == {0, 255}
    palette = Image.fromarray(corners()).quantize(16)
    np.testing.assert_array_equal(decode_picture(saved(palette, "PNG")), corners())


def test_transparency_shows_white() -> None:
    layered = np.dstack([corners(), np.zeros((24, 40), dtype=np.uint8)])
    layered[:12, :20, 3] = 255
    pixels = decode_picture(saved(Image.fromarray(layered, "RGBA"), "PNG"))
    assert pixels[0, 0].tolist() == [255, 0, 0]
    assert pixels[23, 39].tolist() == [255, 255, 255]


def test_grey_with_alpha_and_palette_transparency() -> None:
    grey_alpha = Image.merge("LA", [Image.new("L", (4, 4), 10), Image.new("L", (4, 4), 0)])
    assert decode_picture(saved(grey_alpha, "PNG")).min() == 255
    palette = Image.fromarray(corners()).quantize(16)
    data = saved(palette, "PNG", transparency=palette.getpixel((0, 0)))
    assert decode_picture(data)[0, 0].tolist() == [255, 255, 255]


def test_cmyk_becomes_rgb() -> None:
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    pixels = decode_picture(saved(image, "JPEG", quality=100))
    assert pixels[4, 4, 0] > 200
    assert pixels[4, 4, 1:].max() < 60


def test_an_animation_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode_picture(data)[0, 0].tolist() == [255, 0, 0]


def png_header(width: int, height: int) -> bytes:
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = b"IDAT" + zlib.compress(b"none")
    chunks = [struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in (body, pixels)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


GOOD = saved(Image.fromarray(corners()), "PNG")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"no image at all", "no image that is known"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no image that is known"),
        (saved(Image.fromarray(corners()), "TIFF"), "no image that is known"),
        (saved(Image.fromarray(corners()), "BMP"), "no image that is known"),
        (GOOD[: len(GOOD) // 2], "damaged"),
        (GOOD[:60] + b"\0" * 20 + GOOD[80:], "damaged"),
        (png_header(8_000, 8_000), "8000 x 8000 pixels"),
        (png_header(50_000, 50_000), "far more than 40,000,000"),
        (png_header(10, 10), "damaged"),
        (png_header(0, 0), "damaged|no image"),
    ],
)
def test_what_is_no_picture_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        decode_picture(data)
    assert caught.value.param == "file"


JPEG = saved(Image.fromarray(corners()), "JPEG")
WEBP = saved(Image.fromarray(corners()), "WEBP")
ANIMATED = saved(Image.new("P", (9, 9)), "GIF", save_all=True, append_images=[Image.new("P", (9, 9), 3)])


@given(
    st.sampled_from([GOOD, JPEG, WEBP, ANIMATED]),
    st.lists(st.tuples(st.integers(0, 2000), st.binary(min_size=1, max_size=6))),
)
@settings(max_examples=300, deadline=None)
def test_a_damaged_file_is_a_picture_or_refused_and_nothing_else(data: bytes, changes: list[tuple[int, bytes]]) -> None:
    damaged = bytearray(data)
    for place, piece in changes:
        at = place % len(damaged)
        damaged[at : at + len(piece)] = piece
    try:
        pixels = decode_picture(bytes(damaged))
    except RequestError:
        return
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3
    assert pixels.dtype == np.uint8
    assert pixels.size > 0
