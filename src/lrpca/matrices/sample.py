"""A random sample of observed entries: thresholds are read off it instead of off the whole matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from lrpca.kernels.scale import Core, residual_core

if TYPE_CHECKING:
    from lrpca.matrices.dense import DenseMatrix
    from lrpca.matrices.device.sample import DeviceSample

SAMPLE_SIZE = 20_000
# Below this many entries, the sample is the whole matrix ...
_WHOLE = 60_000
# ... and below this many where nothing is to be random.
EXACT_BELOW = 100_000
_MOST_DRAWS = 40
# From this many entries on, whatever is sampled is sampled in groups of neighbours: single entries of a large matrix
# would each cost a cache line, or a chunk of a file.
LARGE = 1 << 26
# Neighbouring rows or columns of a block; more of them where an axis is this many times longer, since files are read in
# chunks, of which few should be touched, but never so many that there are fewer groups than this.
GROUP, _LONG, _FEWEST = 16, 1000, 6
# Those of a tile of sampled entries, and how many tiles there are along an axis.
_TILE_ROWS, _TILE_COLUMNS, _TILES = 8, 10, 16
# Rows and columns of a first, small sample.
_FEW = 32
# A value that this share of the entries has is no measurement.
_COMMON, _MAJORITY = 0.1, 0.5
# Entries that are tested first, in steps of the golden ratio, which are spread evenly.
_LOOKED_AT, _GOLDEN = 256, 0.6180339887498949
# Rows of a tile are drawn by their weights within so many neighbours.
_NEIGHBOURS = 64
# A row of a block should have this many observed entries; sparsely observed data make it longer, to this length.
_OBSERVED, _LONGEST = 300, 3000
# All entries of a matrix are computed where it has at most so many times those of the sample.
_DENSE = 2


@dataclass(frozen=True)
class Sample:
    """Positions and values of sampled observed entries."""

    rows: Any  # (m,) int
    columns: Any  # (m,) int
    values: Any  # (m,) float64 or complex128

    @cached_property
    def typical(self) -> float:
        """The median modulus of the values."""
        return float(np.median(np.abs(self.values)))

    @property
    def telling(self) -> Sample:
        """The sample without the one value that many entries share: a black border, a fill value, counts of zero.

        Such entries are fitted exactly long before the others, and say nothing of their scale or noise.
        """
        return self if self._without_common is None else self._without_common

    @cached_property
    def _without_common(self) -> Sample | None:
        """The same, None where there is no such value: a sample that held itself would be freed late."""
        # In one that goes row by row these are in all columns.
        few = self.values[(_GOLDEN * np.arange(_LOOKED_AT) % 1.0 * len(self.values)).astype(int)]
        if len(self.values) > _LOOKED_AT and len(np.unique(few)) == len(few):
            # A value that a tenth of all have would be there 25 times.
            return None
        values, counts = np.unique(self.values, return_counts=True)
        most = int(counts.argmax())
        share = counts[most] / len(self.values)
        # Most entries of a constant matrix are its measurement; two values leave nothing to measure.
        measures = share > _MAJORITY and values[most] != 0
        if len(values) <= 2 or share < _COMMON or measures:
            return None
        return self.only(self.values != values[most])

    def residuals(self, L: Any, R: Any) -> Any:
        """Return |Y - L Rᵀ| at the sampled positions."""
        return np.abs(self.signed_residuals(L, R))

    def signed_residuals(self, L: Any, R: Any) -> Any:
        """Return Y - L Rᵀ at the sampled positions."""
        if not isinstance(L, np.ndarray):
            return self._beside(L).signed_residuals(L, R)
        if len(L) * len(R) <= _DENSE * len(self.values):
            return self.values - (L @ R.T).ravel().take(self._places(len(R)))
        residuals = self.values.astype(np.result_type(self.values, L, R))
        # Component by component: six times as fast as gathering whole rows of L and R.
        for k in range(L.shape[1]):
            residuals -= L[:, k].take(self.rows) * R[:, k].take(self.columns)
        return residuals

    def _places(self, n2: int) -> Any:
        """Return where the entries are in a matrix of so many columns, (m,)."""
        if n2 not in self._known_places:
            self._known_places[n2] = self.rows * n2 + self.columns
        return self._known_places[n2]

    @cached_property
    def _known_places(self) -> dict[int, Any]:
        return {}

    def core(self, L: Any, R: Any, rounding: float) -> Core:
        """Return the peak of clean residuals of a fit; see `lrpca.kernels.scale.residual_core`."""
        if not isinstance(L, np.ndarray):
            found: Core | None = self._beside(L).core(L, R, rounding)
            if found is not None:
                return found
        return residual_core(self.residuals(L, R), rounding, is_complex=np.iscomplexobj(self.values))

    def _beside(self, factor: Any) -> DeviceSample:
        """Return the sample on the device of a factor."""
        from lrpca.matrices.device.sample import DeviceSample

        device = factor.tensor.device
        if device not in self._on_devices:
            self._on_devices[device] = DeviceSample(self.rows, self.columns, self.values, device)
        return self._on_devices[device]

    @cached_property
    def _on_devices(self) -> dict[Any, DeviceSample]:
        return {}

    def in_units(self, unit: float) -> Sample:
        """Return the sample of Y divided by a power of two."""
        return self if unit == 1 else Sample(self.rows, self.columns, self.values * (1 / unit))

    def only(self, chosen: Any) -> Sample:  # chosen (m,) bool, a slice, or places
        """Return some of the sampled entries."""
        return Sample(self.rows[chosen], self.columns[chosen], self.values[chosen])


def draw_sample(
    matrix: DenseMatrix,
    rng: np.random.Generator,
    *,
    size: int = SAMPLE_SIZE,
    row_weight: Any = None,  # (n1,)
    exact: bool = False,
    allow_empty: bool = False,
) -> Sample:
    """Draw about `size` observed entries uniformly (rows in proportion to `row_weight`); few if few are observed.

    A small matrix is taken whole, also a slightly larger one for an `exact` way; in a large one the entries lie in
    tiles, on a lattice of rows and columns. Raises ValueError where nothing is observed, unless an empty sample is
    allowed.
    """
    n1, n2 = matrix.shape
    large = is_large(matrix.shape)
    if n1 * n2 < (EXACT_BELOW if exact else _WHOLE) and row_weight is None:
        return _look_up(matrix, *np.divmod(np.arange(n1 * n2), n2), allow_empty=allow_empty)
    found: list[Sample] = []
    total = 0
    probability = None if row_weight is None else row_weight / row_weight.sum()
    for _ in range(_MOST_DRAWS):
        if large:
            rows, columns = _lattice(matrix.shape, size, rng, row_weight)
            matrix.reads += len(rows) / (n1 * n2)
        else:
            rows = rng.integers(n1, size=size) if probability is None else rng.choice(n1, size, p=probability)
            columns = rng.integers(n2, size=size)
        found.append(_look_up(matrix, rows, columns, allow_empty=True))
        total += len(found[-1].values)
        if total >= size:
            break
    if total == 0 and not allow_empty:
        return _scan(matrix)
    if len(found) == 1:
        return found[0]
    return Sample(*(np.concatenate([getattr(part, name) for part in found]) for name in ("rows", "columns", "values")))


def is_large(shape: tuple[int, int]) -> bool:
    """Tell whether a matrix is so large that samples of it are drawn in groups of neighbours."""
    return math.prod(shape) >= LARGE


def grouped(n: int, count: int, rng: np.random.Generator) -> Any:
    """Return `count` of n indices, sorted, drawn without replacement in whole groups of neighbours (but for one).

    Groups begin at multiples of their length: nothing but n, `count` and the generator decides which are drawn.

    Examples
    --------
    >>> grouped(100, 17, np.random.default_rng(0))
    array([32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 64])
    """
    if count >= n:
        return np.arange(n)
    group = max(GROUP, min(n // _LONG, count // _FEWEST))
    first = group * rng.permutation(-(-n // group))[: -(-count // group) + 1]
    indices = (first[:, None] + np.arange(group)).ravel()
    return np.sort(indices[indices < n][:count])


def choose_block(shape: tuple[int, int], lengths: tuple[int, int], rng: np.random.Generator) -> tuple[Any, Any]:
    """Return so many rows and columns at random, sorted: in groups of neighbours where the matrix is large."""
    if is_large(shape):
        return grouped(shape[0], lengths[0], rng), grouped(shape[1], lengths[1], rng)
    rows, columns = (np.sort(rng.permutation(n)[:m]) for n, m in zip(shape, lengths, strict=True))
    return rows, columns


def block_of(matrix: DenseMatrix, rng: np.random.Generator, entries: int, weight: Any = None) -> tuple[Any, Any]:
    """Return the rows and columns of a random block of so many entries, in order; all where that is not much more.

    Sparsely observed data make it longer.
    """
    side = math.isqrt(entries)
    side = min(_LONGEST, max(side, math.ceil(min(side, _OBSERVED) / observed_share(matrix, rng))))
    short = min(side, *matrix.shape)
    # The short side whole if need be, the other one as long as the block allows.
    lengths = [min(n, short if n == min(matrix.shape) else side * side // short) for n in matrix.shape]
    if 2 * math.prod(lengths) > math.prod(matrix.shape):
        return np.arange(matrix.shape[0]), np.arange(matrix.shape[1])
    if weight is None and is_large(matrix.shape):
        return choose_block(matrix.shape, (lengths[0], lengths[1]), rng)
    # Weights may be on a device.
    weight = None if weight is None else np.asarray(weight)
    probability = None if weight is None else weight / weight.sum()
    count = lengths[0] if weight is None else min(lengths[0], int(np.count_nonzero(weight)))
    rows = rng.choice(matrix.shape[0], count, replace=False, p=probability)
    return np.sort(rows), np.sort(rng.choice(matrix.shape[1], lengths[1], replace=False))


def read_block(matrix: DenseMatrix, rows: Any, columns: Any) -> tuple[Any, Any]:  # rows (m,) int; columns (k,) int
    """Return the values (m, k) of some rows and columns, and which of them are observed; refuse infinite ones."""
    part = matrix.submatrix(rows, columns)
    observed = part.array == part.array
    if part.mask is not None:
        observed &= part.mask
    infinite = np.argwhere(observed & np.isinf(part.array))
    if len(infinite):
        i, j = infinite[0]
        refuse_infinite(rows[i], columns[j], part.array[i, j])
    return part.array, observed


def observed_share(matrix: DenseMatrix, rng: np.random.Generator) -> float:
    """Return about which share of the entries is observed, at least 0.01, from a thousand of them."""
    if is_large(matrix.shape):
        rows, columns = (_spread_groups(n, _FEW, _FEW // 8, rng) for n in matrix.shape)
        i, j = (grid.ravel() for grid in np.meshgrid(rows, columns, indexing="ij"))
    else:
        i, j = (rng.integers(n, size=1000) for n in matrix.shape)
    _, seen = matrix.entries(i, j)
    return max(0.01, float(seen.mean()))


def refuse_infinite(i: int, j: int, value: Any) -> NoReturn:
    """Raise the error of an entry that is not finite."""
    raise ValueError(f"Y[{i}, {j}]={value} is not finite; mark missing entries with NaN or mask=")


def refuse_largest(i: int, j: int, value: Any) -> NoReturn:
    """Raise the error of the largest entry of a matrix whose norm is infinite."""
    if not np.isfinite(value):
        refuse_infinite(i, j, value)
    raise ValueError(
        f"Y[{i}, {j}]={value:.3g} is too large beside the others to be squared; mark it as missing, with NaN or mask="
    )


def _lattice(shape: tuple[int, int], size: int, rng: np.random.Generator, weight: Any) -> tuple[Any, Any]:
    """Return the positions of about `size` entries: all crossings of some rows and columns, which lie in small groups.

    One group is drawn from each of as many equal parts of the axis, so that few chunks of a file are touched, yet all
    regions. Rows with weights are drawn by them, near places that are drawn by them.
    """
    columns = _spread_groups(shape[1], max(_TILES * _TILE_COLUMNS, -(-size // shape[0])), _TILE_COLUMNS, rng)
    count = -(-size // len(columns))
    if weight is None:
        rows = _spread_groups(shape[0], count, _TILE_ROWS, rng)
    else:
        rows = _weighted_groups(weight, count, rng)
    i, j = np.meshgrid(rows, columns, indexing="ij")
    return i.ravel(), j.ravel()


def _spread_groups(n: int, count: int, group: int, rng: np.random.Generator) -> Any:
    """Return about `count` of n indices in groups of neighbours, one group from each equal part of the axis."""
    parts = -(-count // group)
    if parts * group >= n:
        return np.arange(n)
    edges = np.linspace(0, n - group + 1, parts + 1).astype(int)
    first = rng.integers(edges[:-1], np.maximum(edges[1:], edges[:-1] + 1))
    return np.unique(first[:, None] + np.arange(group))


def _weighted_groups(weight: Any, count: int, rng: np.random.Generator) -> Any:  # weight (n,)
    """Return `count` indices drawn by their weights, with replacement, a few each from some stretches of neighbours."""
    starts = np.arange(0, len(weight), _NEIGHBOURS)
    total = np.add.reduceat(weight, starts)
    found = []
    for stretch in rng.choice(len(starts), -(-count // _TILE_ROWS), p=total / total.sum()):
        here = weight[starts[stretch] : starts[stretch] + _NEIGHBOURS]
        found.append(starts[stretch] + rng.choice(len(here), _TILE_ROWS, p=here / here.sum()))
    return np.sort(np.concatenate(found))


def _look_up(matrix: DenseMatrix, rows: Any, columns: Any, *, allow_empty: bool = False) -> Sample:
    values, observed = matrix.entries(rows, columns)
    wide = np.complex128 if np.iscomplexobj(values) else np.float64
    if not allow_empty and not observed.any():
        raise ValueError("Y has no observed entry (all NaN or masked); pass data with observed entries")
    infinite = np.flatnonzero(observed & np.isinf(values))
    if len(infinite):
        refuse_infinite(rows[infinite[0]], columns[infinite[0]], values[infinite[0]])
    if observed.all():
        return Sample(rows, columns, values.astype(wide))
    return Sample(rows[observed], columns[observed], values[observed].astype(wide))


def _scan(matrix: DenseMatrix) -> Sample:
    """Find observed entries one row at a time, where random draws found none."""
    n2 = matrix.shape[1]
    hits = [np.flatnonzero(matrix.entries(np.full(n2, i), np.arange(n2))[1]) for i in range(matrix.shape[0])]
    return _look_up(matrix, np.repeat(np.arange(len(hits)), [len(row) for row in hits]), np.concatenate(hits))
