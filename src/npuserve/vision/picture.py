"""From an image file's bytes to pixels. Pillow is imported when the first image comes."""

import io
import warnings
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from npuserve.errors import RequestError

if TYPE_CHECKING:
    from PIL import Image

MAX_BYTES = 20 << 20
MAX_PIXELS = 40_000_000
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
# What shows through transparent pixels.
_BACKGROUND = (255, 255, 255)


def decode_picture(data: bytes) -> NDArray[np.uint8]:
    """RGB pixels, [height, width, 3], upright by EXIF; of an animation the first frame.

    Grey, palette and CMYK images become RGB, transparency shows white. Raises RequestError for what is no PNG, JPEG,
    WebP or GIF, is damaged, or is larger than 40 megapixels by its header, which is read first.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if not data:
        raise _refusal("the body is empty; send the bytes of an image")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow about large or odd images: we have our own limits
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                width, height = image.size
                if width * height > MAX_PIXELS:
                    raise _refusal(f"the image has {width} x {height} pixels; at most {MAX_PIXELS:,} are taken")
                image.load()
                return np.asarray(_rgb(ImageOps.exif_transpose(image)))
    except RequestError:
        raise
    except Image.DecompressionBombError as error:  # Pillow's own, higher limit
        raise _refusal(f"the image has far more than {MAX_PIXELS:,} pixels, which is what is taken at most") from error
    except UnidentifiedImageError as error:
        raise _refusal(f"the body is no image that is known here; send one of {', '.join(_FORMATS)}") from error
    except Exception as error:  # a damaged file may fail anywhere in the decoders, in any way
        raise _refusal("the image is damaged or of a kind that cannot be decoded; save it again") from error


def _rgb(image: "Image.Image") -> "Image.Image":
    from PIL import Image

    if image.mode in ("I", "I;16", "I;16B", "I;16L", "F"):
        grey = np.asarray(image, dtype=np.float64)
        # 16-bit greys in their own range; Pillow's conversion would clip them to 255.
        scale = 257.0 if grey.size and grey.max() > 255 else 1.0
        image = Image.fromarray(np.clip(grey / scale, 0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layered = image.convert("RGBA")
        opaque = Image.new("RGBA", layered.size, (*_BACKGROUND, 255))
        return Image.alpha_composite(opaque, layered).convert("RGB")
    return image.convert("RGB")


def _refusal(message: str) -> RequestError:
    return RequestError(message, param="file", code="invalid_image")
