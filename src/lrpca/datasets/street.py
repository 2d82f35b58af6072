"""The renderer behind `lrpca.datasets.street_scene`: shapes, figures and cars, houses, a tree, and the light.

All lengths are in design units, the pixels of a picture 160 pixels high; `scale` is pixels per unit. A shape
is its signed distance at the pixel centres (negative inside); clipping that to one pixel gives smooth edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import cos, hypot, pi, sin, sqrt

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float32]
Point = tuple[float, float]
Part = tuple[Float, "float | Float"]  # signed distance to a shape, grey level of the shape

DESIGN_HEIGHT = 160.0
SHADOW = 0.07  # share of the light that a contact shadow takes
MARGIN = 40.0  # how far outside the picture an actor turns up
FACADE_FOOT, FAR_KERB, NEAR_KERB = 92.0, 106.0, 144.0
TREE_LEFT, TREE_TOP, TREE_WIDTH, TREE_HEIGHT = 166.0, 4.0, 66.0, 104.0


def capsule(x: Float, y: Float, a: Point, b: Point, radius: float) -> Float:
    """Return the distance to a thick line from a to b; a disc when a is b."""
    dx, dy = b[0] - a[0], b[1] - a[1]
    length2 = dx * dx + dy * dy
    along = np.clip(((x - a[0]) * dx + (y - a[1]) * dy) / length2, 0, 1) if length2 > 0 else 0.0
    return np.asarray(np.hypot(x - a[0] - along * dx, y - a[1] - along * dy) - radius)


def box(x: Float, y: Float, left: float, top: float, right: float, bottom: float, corner: float = 0.0) -> Float:
    """Return the distance to a box whose corners have the radius `corner`."""
    dx = np.abs(x - (left + right) / 2) - (right - left) / 2 + corner
    dy = np.abs(y - (top + bottom) / 2) - (bottom - top) / 2 + corner
    inside = np.minimum(np.maximum(dx, dy), 0)
    return np.asarray(np.hypot(np.maximum(dx, 0), np.maximum(dy, 0)) + inside - corner)


def polygon(x: Float, y: Float, corners: list[Point]) -> Float:
    """Return the distance to the edges of a convex polygon, corners counter-clockwise for y upwards."""
    sides = [
        ((y1 - y0) * (x - x0) - (x1 - x0) * (y - y0)) / hypot(x1 - x0, y1 - y0)
        for (x0, y0), (x1, y1) in zip(corners, corners[1:] + corners[:1], strict=True)
    ]
    return np.asarray(np.maximum.reduce(sides))


def paint(image: Float, cover: Float | None, parts: Iterable[Part], scale: float) -> None:
    """Paint shapes one over the other; `cover` collects how much of each pixel they hide."""
    for distance, shade in parts:
        alpha = np.clip(0.5 - distance * scale, 0, 1)
        image += alpha * (shade - image)
        if cover is not None:
            cover += alpha * (1 - cover)


def pixel_centres(shape: tuple[int, int], scale: float) -> tuple[Float, Float]:
    """Return the coordinates x (1, width) and y (height, 1) of the pixel centres."""
    x = ((np.arange(shape[1]) + 0.5) / scale).astype(np.float32)[None, :]
    y = ((np.arange(shape[0]) + 0.5) / scale).astype(np.float32)[:, None]
    return x, y


def mottle(rng: np.random.Generator, shape: tuple[int, int], cell: Point) -> Float:
    """Return smooth random texture of unit variance with grains of about `cell` = (height, width) pixels."""
    rows, columns = (max(2, int(np.ceil(n / max(c, 1.0))) + 1) for n, c in zip(shape, cell, strict=True))
    grid = rng.standard_normal((rows, columns))
    at_row, at_column = np.linspace(0, rows - 1, shape[0]), np.linspace(0, columns - 1, shape[1])
    i, j = np.minimum(at_row.astype(int), rows - 2), np.minimum(at_column.astype(int), columns - 2)
    v, u = (at_row - i)[:, None], (at_column - j)[None, :]
    tall = grid[i] * (1 - v) + grid[i + 1] * v
    texture = (tall[:, j] * (1 - u) + tall[:, j + 1] * u).astype(np.float32)
    return np.asarray(texture / texture.std())


@dataclass(frozen=True)
class Actor:
    """One figure or car: it crosses the picture, stays outside for a while and comes back."""

    shape: Callable[[Actor, Float, Float, float], Iterator[Part]]
    ground: float  # row on which it stands
    size: float  # height of a figure, length of a car
    speed: float  # per frame; negative: from right to left
    start: float  # place at the first frame, as a share of its lap
    lap: float  # length of its lap in picture widths, the margins not counted
    shades: tuple[float, float, float]  # figure: coat, trousers, head; car: body, glass, and height / length

    def position(self, frame: int, extent: float) -> Point:
        """Return the place of its foot point in a picture `extent` wide, and the distance it has covered."""
        lap = self.lap * extent + 2 * MARGIN
        way = self.start * lap + abs(self.speed) * frame
        along = way % lap - MARGIN
        return (along if self.speed > 0 else extent - along), way


def _limb(x: Float, y: Float, start: Point, swing: float, bend: float, length: float) -> Iterator[Float]:
    """Yield the two halves of a leg or arm that hangs from `start`, each of the given length."""
    knee = (start[0] + length * sin(swing), start[1] - length * cos(swing))
    end = (knee[0] + length * sin(swing - bend), knee[1] - length * cos(swing - bend))
    yield capsule(x, y, start, knee, 0.21 * length)
    yield capsule(x, y, knee, end, 0.18 * length)


def figure(actor: Actor, x: Float, y: Float, way: float) -> Iterator[Part]:
    """Yield a figure that walks to the right; (0, 0) is the ground below the hip, y goes upwards."""
    n, (coat, trousers, head) = actor.size, actor.shades
    phase = 2 * pi * way / (0.85 * n)
    hip, shoulder = (0.0, 0.49 * n), (0.01 * n, 0.80 * n)
    swing = 0.48 * sin(phase)
    for side, darker in ((-1, 0.8), (1, 1.0)):  # the far leg first
        bend = 0.75 * max(0.0, side * cos(phase)) + 0.08
        for half in _limb(x, y, hip, side * swing, bend, 0.225 * n):
            yield half, darker * trousers
        if side < 0:
            for half in _limb(x, y, shoulder, 0.9 * swing, -0.35, 0.17 * n):
                yield half, 0.8 * coat
    yield capsule(x, y, (0.0, 0.47 * n), (0.02 * n, 0.77 * n), 0.09 * n), coat * (1 + 1.2 * x / n)
    for half in _limb(x, y, shoulder, -0.9 * swing, -0.35, 0.17 * n):
        yield half, 0.88 * coat
    yield capsule(x, y, (0.02 * n, 0.86 * n), (0.025 * n, 0.92 * n), 0.062 * n), head
    yield capsule(x, y, (0.0, 0.945 * n), (0.015 * n, 0.95 * n), 0.055 * n), 0.45 * head


def car(actor: Actor, x: Float, y: Float, way: float) -> Iterator[Part]:
    """Yield a car that drives to the right; (0, 0) is the ground below its middle, y goes upwards."""
    n, (body, glass, roof) = actor.size, actor.shades
    top, belt = roof * n, 0.19 * n
    nose, tail = (0.17 * n, -0.40 * n) if roof < 0.35 else (0.40 * n, -0.47 * n)  # a van is nearly a box
    gloss = 1 + 0.45 * (y - belt) / n
    cabin = [(tail, belt - 1), (nose + 0.03 * n, belt - 1), (nose - 0.13 * n, top), (tail + 0.07 * n, top)]
    yield polygon(x, y, cabin), body * gloss
    yield box(x, y, -0.5 * n, 0.055 * n, 0.5 * n, belt + 0.02 * n, 0.05 * n), body * gloss
    low, high = belt + 0.015 * n, top - 0.03 * n
    for left, right in ((tail + 0.09 * n, -0.12 * n), (-0.10 * n, nose - 0.06 * n)):
        slant = 0.09 * n * (right > 0)
        pane = [(left, low), (right, low), (right - slant, high), (left + 0.02 * n, high)]
        yield polygon(x, y, pane), glass * (1 + 0.8 * (y - low) / n)
    yield box(x, y, 0.45 * n, 0.12 * n, 0.5 * n, 0.16 * n, 0.01 * n), 235.0
    yield box(x, y, -0.5 * n, 0.13 * n, -0.465 * n, 0.17 * n, 0.01 * n), 60.0
    for axle in (-0.29 * n, 0.30 * n):
        hub = (axle, 0.085 * n)
        yield capsule(x, y, hub, hub, 0.085 * n), 28.0
        yield capsule(x, y, hub, hub, 0.042 * n), 165.0


FAR_FIGURES = (  # on the far pavement, behind the tree
    Actor(figure, 98.5, 28.0, 0.75, 0.10, 1.4, (222.0, 40.0, 190.0)),
    Actor(figure, 100.5, 30.0, -1.05, 0.15, 1.5, (32.0, 30.0, 178.0)),
    Actor(figure, 102.5, 25.0, 1.35, 0.45, 1.5, (190.0, 205.0, 185.0)),
    Actor(figure, 101.5, 31.0, -0.60, 0.55, 1.3, (40.0, 215.0, 170.0)),
)
NEAR_ACTORS = (  # the two lanes of the road, then the near pavement; cars of a lane share their speed
    Actor(car, 119.5, 48.0, -3.9, 0.05, 2.9, (206.0, 48.0, 0.31)),
    Actor(car, 121.5, 45.0, -3.9, 0.55, 2.9, (38.0, 60.0, 0.32)),
    Actor(car, 140.0, 60.0, 3.2, 0.20, 3.3, (158.0, 40.0, 0.31)),
    Actor(car, 138.0, 68.0, 3.2, 0.62, 3.3, (218.0, 52.0, 0.42)),
    Actor(figure, 150.0, 47.0, 1.15, 0.20, 1.7, (58.0, 44.0, 188.0)),
    Actor(figure, 152.5, 52.0, -0.95, 0.35, 1.7, (226.0, 62.0, 182.0)),
    Actor(figure, 156.0, 56.0, 1.45, 0.70, 1.8, (188.0, 32.0, 70.0)),
    Actor(figure, 158.0, 40.0, -1.75, 0.80, 1.7, (30.0, 212.0, 176.0)),
)


def draw(actor: Actor, frame: int, image: Float, cover: Float, scale: float) -> None:
    """Draw an actor and its contact shadow as of one frame into `image` and `cover`, (height, width) each."""
    height, width = image.shape
    x, way = actor.position(frame, width / scale)
    reach, tall, shadow = (0.55, 0.5, 0.46) if actor.shape is car else (0.45, 1.05, 0.22)
    left = max(0, int((x - reach * actor.size) * scale))
    right = min(width, int((x + reach * actor.size) * scale) + 1)
    if left >= right:
        return
    top = max(0, int((actor.ground - tall * actor.size) * scale))
    bottom = min(height, int((actor.ground + 0.06 * actor.size) * scale) + 1)
    columns, rows = pixel_centres((height, width), scale)
    u = (columns[:, left:right] - x) * (1 if actor.speed > 0 else -1)
    v = actor.ground - rows[top:bottom]
    patch = image[top:bottom, left:right]
    patch *= 1 - SHADOW * np.clip(2 - 2 * np.hypot(u / shadow, v / 0.05) / actor.size, 0, 1)
    paint(patch, cover[top:bottom, left:right], actor.shape(actor, u, v, way), scale)


def _windows(
    x: Float, y: Float, left: float, right: float, roof: float, wall: float, rng: np.random.Generator
) -> Iterator[Part]:
    count = int((right - left - 4) // 10)
    for floor in np.arange(roof + 8, 58, 17.0).tolist():
        for k in range(count):
            at, glass = left + (k + 0.5) * (right - left) / count, rng.uniform(52, 84)
            yield box(x, y, at - 3.4, floor - 0.8, at + 3.4, floor + 10.8), min(1.3 * wall, 205)
            sheen = 1 + 0.25 * np.sin(0.5 * (x - at) + 0.35 * (y - floor))
            yield box(x, y, at - 2.4, floor, at + 2.4, floor + 9.8), glass * sheen
            yield box(x, y, at - 0.35, floor, at + 0.35, floor + 9.8), min(1.2 * wall, 195)
            yield box(x, y, at - 4.2, floor + 10.8, at + 4.2, floor + 12.2), 0.62 * wall


def _house(x: Float, y: Float, left: float, right: float, rng: np.random.Generator) -> Iterator[Part]:
    """Yield a facade: wall with courses, cornice, chimney, windows, and a shop on the ground floor."""
    wall, roof = rng.uniform(118, 172), rng.uniform(12, 36)
    courses = 1 + 0.035 * np.sign(np.sin(2 * pi * y / 3.2)) + 0.02 * np.sin(2 * pi * (x - left) / 4.5)
    yield box(x, y, left, roof, right, FACADE_FOOT), wall * courses
    yield box(x, y, left - 0.7, roof - 1.5, right + 0.7, roof + 1.5), 0.72 * wall
    yield box(x, y, left - 0.7, roof - 2.2, right + 0.7, roof - 1.2), 1.18 * wall
    chimney = left + (right - left) * rng.uniform(0.15, 0.75)
    yield box(x, y, chimney, roof - 8, chimney + 5, roof - 1.5), 0.8 * wall
    yield box(x, y, chimney - 0.6, roof - 9, chimney + 5.6, roof - 7.5), 0.6 * wall
    yield from _windows(x, y, left, right, roof, wall, rng)
    front, door = rng.uniform(100, 128), left + (right - left) * (0.2 if rng.random() < 0.5 else 0.8)
    yield box(x, y, left, 68.5, right, FACADE_FOOT), front
    yield box(x, y, left + 3, 73.5, right - 3, 88), front * (0.80 + 0.06 * np.sin(0.35 * (x + y)))
    yield box(x, y, door - 3.5, 73.5, door + 3.5, FACADE_FOOT), 0.68 * front
    cloth, pitch, striped = rng.uniform(150, 196), rng.uniform(6, 11), rng.random() < 0.6
    stripes = 0.86 + 0.14 * np.sign(np.sin(2 * pi * (x - left) / pitch)) if striped else 0.5
    awning = [(left + 1, -72.5), (right - 1, -72.5), (right - 3, -66.5), (left + 3, -66.5)]
    yield polygon(x, -y, awning), cloth * stripes


def _ground(x: Float, y: Float, extent: float) -> Iterator[Part]:
    """Yield pavements with slabs, kerbs, the road and its markings."""
    end, bottom = extent + 5, DESIGN_HEIGHT + 5
    yield box(x, y, -5, FACADE_FOOT, end, FAR_KERB), 146.0
    yield box(x, y, -5, NEAR_KERB, end, bottom), 152.0
    yield box(x, y, -5, FACADE_FOOT - 0.4, end, FACADE_FOOT + 0.8), 92.0
    for top, foot, pitch in ((FACADE_FOOT, FAR_KERB, 13.0), (NEAR_KERB, bottom, 21.0)):
        for at in np.arange(-2 * pitch, extent + 2 * pitch, pitch).tolist():  # joints fan out to the viewer
            yield capsule(x, y, (at, top), (at + 0.006 * (at - extent / 2) * (foot - top), foot), 0.22), 124.0
    yield capsule(x, y, (-5, 98), (end, 98), 0.2), 126.0
    yield capsule(x, y, (-5, 153.5), (end, 153.5), 0.25), 130.0
    yield box(x, y, -5, FAR_KERB, end, NEAR_KERB), 96.0
    for kerb, gutter in ((FAR_KERB, FAR_KERB + 1.3), (NEAR_KERB, NEAR_KERB - 2.1)):
        yield box(x, y, -5, kerb - 1.4, end, kerb + 0.6), 184.0
        yield box(x, y, -5, gutter - 0.7, end, gutter + 0.7), 74.0
    for at in np.arange(4, extent, 30.0).tolist():
        yield box(x, y, at, 123.9, at + 15, 125.3), 198.0


def backdrop(shape: tuple[int, int], scale: float, rng: np.random.Generator) -> Float:
    """Return the empty street without its tree in plain light, (height, width)."""
    x, y = pixel_centres(shape, scale)
    extent = shape[1] / scale
    image = 204 - 0.2 * y + 7 * mottle(rng, shape, (9 * scale, 34 * scale))  # the sky
    left = -rng.uniform(4, 20)
    while left < extent:
        right = left + rng.uniform(38, 56)
        paint(image, None, _house(x, y, left, right, rng), scale)
        left = right
    paint(image, None, _ground(x, y, extent), scale)
    road = (y > FAR_KERB + 2) & (y < NEAR_KERB - 2.8)
    grain = np.where(road, np.float32(2.4), np.float32(1.6)) * (y > 66)
    image += grain * mottle(rng, shape, (scale, 1.4 * scale))
    image += 2.2 * (y > 10) * mottle(rng, shape, (5 * scale, 22 * scale))
    for at in (0.22 * extent, 0.94 * extent):  # street lamps
        mast, arm = capsule(x, y, (at, 45), (at, FAR_KERB - 2), 0.7), capsule(x, y, (at, 45), (at + 7, 47), 0.5)
        lamp = capsule(x, y, (at + 7, 47), (at + 10, 47.4), 1.2)
        paint(image, None, [(mast, 58.0), (arm, 58.0), (lamp, 214.0)], scale)
    return image


class Tree:
    """A tree at the far kerb: grey levels and coverage of a window of the picture, swaying in the wind."""

    def __init__(self, shape: tuple[int, int], scale: float, rng: np.random.Generator) -> None:
        left = TREE_LEFT * shape[1] / scale / 240
        self.rows = slice(int(TREE_TOP * scale), min(shape[0], int((TREE_TOP + TREE_HEIGHT) * scale)))
        self.columns = slice(int(left * scale), min(shape[1], int((left + TREE_WIDTH) * scale)))
        columns, rows = pixel_centres(shape, scale)
        x, y = columns[:, self.columns] - (left + TREE_WIDTH / 2), rows[self.rows]
        self.shade = np.full((y.size, x.size), 60, np.float32)
        self.cover = np.zeros_like(self.shade)
        paint(self.shade, self.cover, _tree_parts(x, y, rng), scale)
        self.sway = scale * np.clip((FAR_KERB - 2 - y) / 90, 0, 1) ** 1.5
        leaves = np.clip(mottle(rng, self.shade.shape, (11 * scale, 11 * scale)), -1.5, 1.5)
        self.flutter = scale * leaves * (y < 64)

    def at(self, frame: int) -> tuple[Float, Float]:
        """Return grey levels and coverage, (rows, columns) each, as of one frame."""
        gust = 0.65 * sin(2 * pi * frame / 23) + 0.35 * sin(2 * pi * frame / 57 + 1)
        shift = 1.1 * gust * self.sway + 0.25 * sin(2 * pi * frame / 9) * self.flutter
        source = np.clip(np.arange(self.shade.shape[1], dtype=np.float32) - shift, 0, self.shade.shape[1] - 1.01)
        i, j = np.arange(self.shade.shape[0])[:, None], source.astype(np.intp)
        weight = source - j.astype(np.float32)
        shade, cover = (part[i, j] * (1 - weight) + part[i, j + 1] * weight for part in (self.shade, self.cover))
        return shade, cover


def _tree_parts(x: Float, y: Float, rng: np.random.Generator) -> Iterator[Part]:
    """Yield trunk, boughs and leaves; the leaves in clumps, each lit from the upper left."""
    trunk = [(-2.6, -104.0), (2.6, -104.0), (1.3, -50.0), (-1.3, -50.0)]
    yield polygon(x, -y, trunk), 62 + 6 * np.sin(1.3 * x)
    for tip in ((-13.0, 44.0), (11.0, 40.0), (2.0, 30.0)):
        yield capsule(x, y, (0.0, 66.0), tip, 0.9), 58.0
    for clump in rng.permutation(20).tolist():
        angle, radius = 2.4 * clump, 19 * sqrt(clump / 20)  # the golden angle spreads them evenly
        middle, wide = (radius * cos(angle), 40 + 1.05 * radius * sin(angle)), rng.uniform(5, 9)
        for _ in range(26):
            dx, dy = (np.clip(rng.normal(0, 0.55, 2), -1.2, 1.2) * wide).tolist()
            light = 80 - 2.6 * dx - 3.4 * dy - 0.5 * (middle[1] - 40) + rng.normal(0, 6)
            leaf = (middle[0] + dx, middle[1] + dy)
            yield capsule(x, y, leaf, leaf, rng.uniform(1.2, 2.3)), min(max(light, 44.0), 122.0)


def light(shape: tuple[int, int], frame: int) -> Float:
    """Return the light of one frame, a factor (height, width): brightness drifts, a cloud comes and goes."""
    x, y = np.arange(shape[1])[None, :] / shape[1], np.arange(shape[0])[:, None] / shape[0]
    overall = 1 + 0.06 * sin(2 * pi * frame / 520 - 0.6)
    cloud = 0.09 * sin(2 * pi * frame / 340) / (1 + np.exp((0.75 - x - 0.5 * y) / 0.12))
    return np.asarray((overall - cloud).astype(np.float32))
