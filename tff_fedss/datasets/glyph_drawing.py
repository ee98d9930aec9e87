"""Drawing of glyphs: strokes of a class, handwriting of a writer, ink on pixels.

Coordinates are in a square [-1, 1]^2, x to the right and y downwards, until ink is laid
on pixels. All arithmetic is float64: differences in rounding between machines are far
below a level of grey.
"""

import dataclasses

import numpy as np

MAX_STROKES = 5
_MIN_STROKES = 2
_POINTS_PER_STROKE = 24
# Pixel measures below are for images of this size and scale with the size.
_REFERENCE_SIZE = 28
_HALF_EXTENT = 9.5  # pixels from the centre to the edge of the square
_MAX_SHIFT = 1.5  # pixels by which an example may be off centre
# A line's ink is exp(-d^2 / 2 pen^2) at distance d. Between these two amounts grey
# rises from white to black, so that an edge is about one pixel wide.
_WHITE_INK, _BLACK_INK = 0.25, 0.75


@dataclasses.dataclass(frozen=True)
class Glyphs:
    """The strokes of some classes.

    Attributes:
        control_points: float64[N, MAX_STROKES, 3, 2], the control points of quadratic
            Bezier curves; rows beyond a glyph's strokes are zero.
        num_strokes: int64[N].
    """

    control_points: np.ndarray
    num_strokes: np.ndarray

    def take(self, indices: np.ndarray) -> "Glyphs":
        """Returns the glyphs at indices, int[M], as M glyphs."""
        return Glyphs(self.control_points[indices], self.num_strokes[indices])


@dataclasses.dataclass(frozen=True)
class Hands:
    """The handwriting of some writers.

    Attributes:
        matrices: float64[N, 2, 2], rotation times slant times scale and aspect.
        pens: float64[N], the spread of a line's ink, in pixels of a 28-pixel image.
        jitters: float64[N], the largest displacement of a control point in x and in y.
    """

    matrices: np.ndarray
    pens: np.ndarray
    jitters: np.ndarray

    def take(self, indices: np.ndarray) -> "Hands":
        """Returns the hands at indices, int[M], as M hands."""
        return Hands(self.matrices[indices], self.pens[indices], self.jitters[indices])


def draw_glyphs(rngs: list[np.random.Generator]) -> Glyphs:
    """Invents one glyph per generator, of two to five strokes.

    A stroke often starts where an earlier one ends, as in writing.
    """
    control_points = np.zeros([len(rngs), MAX_STROKES, 3, 2])
    num_strokes = np.zeros(len(rngs), np.int64)
    for i, rng in enumerate(rngs):
        strokes = _draw_strokes(rng)
        num_strokes[i] = len(strokes)
        control_points[i, : len(strokes)] = strokes
    return Glyphs(control_points, num_strokes)


def _draw_strokes(rng: np.random.Generator) -> np.ndarray:
    """Draws the strokes of one glyph, float64[strokes, 3, 2], to fill the square."""
    strokes = []
    for _ in range(rng.integers(_MIN_STROKES, MAX_STROKES, endpoint=True)):
        start = rng.uniform(-1, 1, 2)
        if strokes and rng.uniform() < 0.6:
            start = strokes[rng.integers(len(strokes))][rng.choice([0, 2])]
        strokes.append(_draw_stroke(start, rng))
    strokes = np.stack(strokes)
    points, _ = _sample(strokes[None])
    low, high = points.min((0, 1, 2)), points.max((0, 1, 2))
    return (2 * strokes - (low + high)) / (high - low).max()


def _draw_stroke(start: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws a curve, float64[3, 2], that leads inwards and is longer than a dot."""
    angle = np.arctan2(-start[1], -start[0]) + rng.uniform(-1.1, 1.1)
    along = rng.uniform(0.8, 1.7) * np.array([np.cos(angle), np.sin(angle)])
    across = np.array([-along[1], along[0]])
    middle = start + along / 2 + rng.uniform(-0.9, 0.9) * across
    return np.stack([start, middle, start + along])


def draw_hands(rngs: list[np.random.Generator]) -> Hands:
    """Invents one hand per generator."""
    # Rotation (radians), slant, log scale, log aspect, pen, jitter.
    low = np.array([-0.25, -0.35, -0.2, -0.15, 0.45, 0.05])
    high = np.array([0.25, 0.35, 0.15, 0.15, 0.9, 0.15])
    draws = np.stack([rng.uniform(low, high) for rng in rngs])
    rotation, slant, scale, aspect, pens, jitters = draws.T
    cos, sin, zero, one = np.cos(rotation), np.sin(rotation), 0 * slant, 1 + 0 * slant
    rotate = _matrices(cos, -sin, sin, cos)
    shear = _matrices(one, slant, zero, one)
    stretch = _matrices(np.exp(scale + aspect), zero, zero, np.exp(scale - aspect))
    return Hands(rotate @ shear @ stretch, pens, jitters)


def _matrices(a, b, c, d) -> np.ndarray:
    return np.stack([np.stack([a, b], -1), np.stack([c, d], -1)], -2)


def render(
    glyphs: Glyphs, hands: Hands, rng: np.random.Generator, image_size: int
) -> np.ndarray:
    """Writes N glyphs once, each with its own hand: uint8[N, size, size, 1].

    Ink is 255 on 0; size is in pixels; `rng` varies the examples.
    """
    pixel = image_size / _REFERENCE_SIZE
    n = len(glyphs.num_strokes)
    stray = rng.uniform(-1, 1, glyphs.control_points.shape)
    shift = rng.uniform(-_MAX_SHIFT, _MAX_SHIFT, [n, 1, 2])

    control_points = glyphs.control_points + hands.jitters[:, None, None, None] * stray
    control_points = control_points.reshape(n, -1, 2) @ hands.matrices.swapaxes(1, 2)
    control_points = pixel * (
        _HALF_EXTENT * control_points + shift + _REFERENCE_SIZE / 2
    )
    points, lengths = _sample(control_points.reshape(glyphs.control_points.shape))
    lengths *= np.arange(MAX_STROKES)[:, None] < glyphs.num_strokes[:, None, None]

    # A two-dimensional Gaussian is a product, so ink = (over y) @ (over x): one small
    # matrix product per image replaces a distance for every point and pixel.
    pens = pixel * hands.pens[:, None]
    lengths = lengths.reshape(n, -1) / (pens * np.sqrt(2 * np.pi))
    grid = np.arange(image_size) + 0.5
    offsets = (grid - points.reshape(n, -1, 2)[..., None]) / pens[..., None, None]
    spread = np.exp(-0.5 * offsets**2)  # [N, points, 2, image_size]
    over_x, over_y = spread[:, :, 0], spread[:, :, 1] * lengths[..., None]
    ink = over_y.swapaxes(1, 2) @ over_x
    level = np.clip((ink - _WHITE_INK) / (_BLACK_INK - _WHITE_INK), 0, 1)
    return np.rint(255 * level).astype(np.uint8)[..., None]


def _sample(control_points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Samples every curve, float64[N, strokes, 3, 2], at equal steps of its parameter.

    Returns points, float64[N, strokes, points, 2], and the length of curve that
    each represents, float64[N, strokes, points].
    """
    t = (np.arange(_POINTS_PER_STROKE) + 0.5) / _POINTS_PER_STROKE
    position = np.stack([(1 - t) ** 2, 2 * t * (1 - t), t**2], -1)
    velocity = np.stack([2 * t - 2, 2 - 4 * t, 2 * t], -1)
    speed = np.sqrt(((velocity @ control_points) ** 2).sum(-1))
    return position @ control_points, speed / _POINTS_PER_STROKE
