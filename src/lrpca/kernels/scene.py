"""Learning a scene from samples of its frames, and marking frames: compiled by numba, serial, releasing the GIL.

A picture is a row of N = pixels x channels bytes; where neighbours matter it is (height, width, channels). Under the
reference light a picture is ``y - R l + R l_ref``, rounded and clipped to bytes again: `relight`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lrpca.kernels.cpu import jit, outer
from lrpca.kernels.trimmed import kth_smallest

_TILE = 1024
# Columns that are gathered together: their bytes share cache lines.
_GATHERED = 64
# Half the side of the square in which a shadow must keep the texture of the ground.
_TEXTURE_REACH = 2
# ... to this share of its own variance. From this byte on the camera may have clipped.
_OWN_TEXTURE = 0.15
_SATURATED = 250


@jit
def _middle_of(counts, total):
    """Return the value below which half of `total` counted bytes lie."""
    seen = 0
    for value in range(256):
        seen += counts[value]
        if 2 * seen >= total:
            return value
    return 255


@outer
def few_middle_values(samples: Any, middle: Any) -> None:  # samples (m, N) uint8, m small; middle (N,) uint8, written
    """Write the median of every column, the lower one of an even number."""
    m, size = samples.shape
    tile, work = np.empty((_GATHERED, m), np.uint8), np.empty(m, np.uint8)
    for start in range(0, size, _GATHERED):
        width = min(_GATHERED, size - start)
        for s in range(m):
            row = samples[s, start : start + width]
            for j in range(width):
                tile[j, s] = row[j]
        for j in range(width):
            middle[start + j] = kth_smallest(tile[j], m, (m - 1) // 2, work)


@outer
def middle_values(
    samples: Any,  # (m, N) uint8
    first: int,
    last: int,
    middle: Any,  # (N,) uint8, written from first to last
    spread: Any,  # (N,) uint8, likewise: the median of |sample - middle|
) -> None:
    """Write the median of every column, and the median distance from it."""
    m = samples.shape[0]
    tile = np.empty((_GATHERED, m), np.uint8)
    counts = np.empty(256, np.int32)
    for start in range(first, last, _GATHERED):
        width = min(_GATHERED, last - start)
        for s in range(m):
            for j in range(width):
                tile[j, s] = samples[s, start + j]
        for j in range(width):
            counts[:] = 0
            for s in range(m):
                counts[tile[j, s]] += 1
            centre = _middle_of(counts, m)
            middle[start + j] = centre
            counts[:] = 0
            for s in range(m):
                counts[abs(np.int32(tile[j, s]) - np.int32(centre))] += 1
            spread[start + j] = _middle_of(counts, m)


@jit
def _solve_small(A, b, r):
    """Solve the symmetric positive definite A x = b in place of b, by Gaussian elimination."""
    for i in range(r):
        pivot = A[i, i]
        for k in range(i + 1, r):
            share = A[k, i] / pivot
            for h in range(i, r):
                A[k, h] -= share * A[i, h]
            b[k] -= share * b[i]
    for i in range(r - 1, -1, -1):
        total = b[i]
        for h in range(i + 1, r):
            total -= A[i, h] * b[h]
        b[i] = total / A[i, i]


@jit
def _add_moments(tile, coefficients, s, x, cut, A, b, e, weight, width, r):
    """Add the weighted squares of the coefficients of sample s, and their products with its residuals, for a tile."""
    for j in range(width):
        e[j] = tile[s, j]
    for k in range(r):
        coefficient = coefficients[s, k]
        for j in range(width):
            e[j] -= coefficient * x[k, j]
    scale = np.float32(1.0) / (cut * cut)
    for j in range(width):
        weight[j] = max(np.float32(1.0) - e[j] * e[j] * scale, np.float32(0.0))
    for k in range(r):
        coefficient = coefficients[s, k]
        for j in range(width):
            b[k, j] += coefficient * weight[j] * e[j]
        for h in range(k + 1):
            both = coefficient * coefficients[s, h]
            for j in range(width):
                A[k, h, j] += both * weight[j]


@outer
def fit_columns(
    samples: Any,  # (m, N) uint8
    coefficients: Any,  # (m, r) float32
    start: Any,  # (r, N) float32: the fit to begin with
    first: int,
    last: int,
    cut: float,  # larger residuals are left out
    steps: int,
    ridge: Any,  # (r,) float32: pulls the coefficients towards the start, in numbers of samples
    out: Any,  # (r, N) float32
) -> None:
    """Fit every column to the coefficients: least squares over the samples near the fit, a few times."""
    m, r = coefficients.shape
    tile = np.empty((m, _GATHERED), np.float32)
    e, weight = np.empty(_GATHERED, np.float32), np.empty(_GATHERED, np.float32)
    x, b = np.empty((r, _GATHERED), np.float32), np.empty((r, _GATHERED), np.float32)
    A = np.empty((r, r, _GATHERED), np.float32)
    small, right = np.empty((r, r), np.float32), np.empty(r, np.float32)
    for begin in range(first, last, _GATHERED):
        width = min(_GATHERED, last - begin)
        for s in range(m):
            for j in range(width):
                tile[s, j] = samples[s, begin + j]
        for k in range(r):
            for j in range(width):
                x[k, j] = start[k, begin + j]
        for _ in range(steps):
            A[:] = 0.0
            for k in range(r):
                for j in range(width):
                    b[k, j] = ridge[k] * (start[k, begin + j] - x[k, j])
            for s in range(m):
                _add_moments(tile, coefficients, s, x, np.float32(cut), A, b, e, weight, width, r)
            for j in range(width):
                for k in range(r):
                    right[k] = b[k, j]
                    for h in range(k + 1):
                        small[k, h] = A[k, h, j]
                        small[h, k] = A[k, h, j]
                    small[k, k] += ridge[k] + np.float32(1e-3)
                _solve_small(small, right, r)
                for k in range(r):
                    x[k, j] += right[k]
        for k in range(r):
            for j in range(width):
                out[k, begin + j] = x[k, j]


@jit
def _relight(frame, change, basis, out):
    """Write ``frame + basisᵀ change`` as bytes, tile by tile. Slices, not offsets, let LLVM vectorise."""
    tile = np.empty(_TILE, np.float32)
    for start in range(0, frame.shape[0], _TILE):
        m = min(_TILE, frame.shape[0] - start)
        source, target = frame[start : start + m], out[start : start + m]
        for j in range(m):
            tile[j] = np.float32(source[j]) + np.float32(0.5)
        for k in range(basis.shape[0]):
            factor, row = change[k], basis[k, start : start + m]
            for j in range(m):
                tile[j] += factor * row[j]
        for j in range(m):
            target[j] = np.uint8(np.int32(min(max(tile[j], np.float32(0.0)), np.float32(255.0))))


@outer
def relight(
    frames: Any,  # (n, N) uint8
    changes: Any,  # (n, r) float32: l_ref - l of each frame
    basis: Any,  # (r, N) float32: Rᵀ
    out: Any,  # (n, N) uint8
) -> None:
    """Write the frames as they would look under the reference light."""
    for i in range(frames.shape[0]):
        _relight(frames[i], changes[i], basis, out[i])


@jit
def _strengths(picture, reference, weights, out):
    """Write the squared distance of every pixel from the reference, grey and colour weighted apart.

    Per channel of three: a grey change of 10 counts ``weights[0] * 300`` in one channel as well as in three.
    """
    pixels, channels = reference.shape
    grey, colour = np.float32(weights[0]), np.float32(weights[1])
    if channels == 1:
        for p in range(pixels):
            e = np.float32(picture[p, 0]) - np.float32(reference[p, 0])
            out[p] = np.float32(3.0) * grey * e * e
    else:
        for p in range(pixels):
            x = np.float32(picture[p, 0]) - np.float32(reference[p, 0])
            y = np.float32(picture[p, 1]) - np.float32(reference[p, 1])
            z = np.float32(picture[p, 2]) - np.float32(reference[p, 2])
            even = (x + y + z) * (x + y + z) * np.float32(1.0 / 3.0)
            out[p] = colour * (x * x + y * y + z * z - even) + grey * even


@outer
def candidates(
    picture: Any,  # (pixels, channels) uint8, under the reference light
    reference: Any,  # (pixels, channels) uint8
    limit: Any,  # (pixels,) float32: of the squared distance
    weights: Any,  # (2,) float32: of grey and of colour in the squared distance
    out: Any,  # (pixels,) uint8
) -> None:
    """Mark the pixels that are not near the reference."""
    strength = np.empty(limit.size, np.float32)
    _strengths(picture, reference, weights, strength)
    for p in range(limit.size):
        out[p] = strength[p] > limit[p]


@jit
def _near(picture, p, reference, q, radius2):
    total = np.int32(0)
    for c in range(reference.shape[1]):
        e = np.int32(picture[p, c]) - np.int32(reference[q, c])
        total += e * e
    return total < radius2


@jit
def _matches(picture, p, samples, d, count, radius2):
    """Return how many of the first `count` samples of dynamic pixel d are near pixel p of the picture."""
    found = np.int32(0)
    if samples.shape[1] == 1:
        y, row = np.int32(picture[p, 0]), samples[d, 0, :count]
        for s in range(count):
            e = np.int32(row[s]) - y
            found += np.int32(e * e < radius2)
    else:
        y0, y1, y2 = np.int32(picture[p, 0]), np.int32(picture[p, 1]), np.int32(picture[p, 2])
        row0, row1, row2 = samples[d, 0, :count], samples[d, 1, :count], samples[d, 2, :count]
        for s in range(count):
            a, b, c = np.int32(row0[s]) - y0, np.int32(row1[s]) - y1, np.int32(row2[s]) - y2
            found += np.int32(a * a + b * b + c * c < radius2)
    return found


@jit
def _explained(picture, i, j, reference, height, width, place, samples, counts, radius2, quiet, need, reach):
    """Tell whether the colour is common enough in the background around the pixel."""
    p = i * width + j
    top, bottom = max(i - reach, 0), min(i + reach, height - 1)
    left, right = max(j - reach, 0), min(j + reach, width - 1)
    wanted = need * np.float32((bottom - top + 1) * (right - left + 1))
    common = np.float32(0.0)
    for y in range(top, bottom + 1):
        for x in range(left, right + 1):
            q = y * width + x
            d = place[q]
            if d < 0:
                if _near(picture, p, reference, q, radius2):
                    common += quiet
            elif counts[d] > 0:
                common += np.float32(_matches(picture, p, samples, d, counts[d], radius2)) / np.float32(counts[d])
            if common >= wanted:
                return True
    return False


@jit
def _count_alike(own, others, radius, count):
    """Add one where two rows of grey levels differ by at most the radius: bytes, vectorised."""
    for x in range(own.shape[0]):
        u, v = own[x], others[x]
        count[x] += np.uint8(np.uint8(max(u, v) - min(u, v)) <= radius)


@jit
def _drop_explained_grey(picture, reference, lonely, height, width, radius, quiet, need, reach, mask):
    """Unmark grey pixels far from dynamic ones that quiet neighbours explain, a stretch of a row at a time."""
    own, ground = picture.reshape(-1), reference.reshape(-1)
    alike = np.empty(width, np.uint8)
    for i in range(height):
        row, alone = mask[i * width : (i + 1) * width], lonely[i * width : (i + 1) * width]
        first, last = 0, width
        while first < width and row[first] == 0:
            first += 1
        if first == width:
            continue
        while row[last - 1] == 0:
            last -= 1
        top, bottom = max(i - reach, 0), min(i + reach, height - 1)
        alike[first:last] = 0
        for y in range(top, bottom + 1):
            for shift in range(-reach, reach + 1):
                begin, end = max(first, -shift), min(last, width - shift)
                if begin < end:
                    here = own[i * width + begin : i * width + end]
                    there = ground[y * width + begin + shift : y * width + end + shift]
                    _count_alike(here, there, np.uint8(radius), alike[begin:end])
        for x in range(first, last):
            size = (bottom - top + 1) * (min(x + reach, width - 1) - max(x - reach, 0) + 1)
            if alone[x] and quiet * np.float32(alike[x]) >= need * np.float32(size):
                row[x] = 0


@jit
def _soft_shadow(picture, i, j, reference, height, width, darkest, colour, texture):
    """Tell whether the pixel is the ground in a soft shadow: a little darker, of the same colour and texture."""
    channels = reference.shape[1]
    p = i * width + j
    light, ground, bright = np.float32(0.0), np.float32(0.0), True
    for c in range(channels):
        if reference[p, c] < _SATURATED:
            light += picture[p, c]
            ground += reference[p, c]
            bright = False
    if bright:
        for c in range(channels):
            light += picture[p, c]
            ground += reference[p, c]
    ratio = light / max(ground, np.float32(1.0))
    if ratio < darkest or ratio >= np.float32(1.0):
        return False
    for c in range(channels):
        e = np.float32(picture[p, c]) - ratio * np.float32(reference[p, c])
        # Where the camera saturates the ground is brighter than it shows, and a shadow takes less from it.
        if e < -colour or (e > colour and reference[p, c] < _SATURATED):
            return False
    yy, yx, xx, y1, x1, count = np.int64(0), np.int64(0), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for v in range(max(i - _TEXTURE_REACH, 0), min(i + _TEXTURE_REACH + 1, height)):
        for u in range(max(j - _TEXTURE_REACH, 0), min(j + _TEXTURE_REACH + 1, width)):
            q = v * width + u
            a, b = np.int32(0), np.int32(0)
            for c in range(channels):
                a += np.int32(picture[q, c])
                b += np.int32(reference[q, c])
            yy += a * a
            yx += a * b
            xx += b * b
            y1 += a
            x1 += b
            count += 1
    share = np.float64(y1) / np.float64(max(x1, np.int64(1)))
    misfit = (yy - 2.0 * share * yx + share * share * xx) / (count * channels * channels)
    own = max(xx - x1 * x1 / count, 0.0) / (count * channels * channels)
    return misfit < texture * texture + _OWN_TEXTURE * own


@jit
def _grey_strength(picture, reference, p, weight):
    total = np.float32(0.0)
    for c in range(reference.shape[1]):
        total += np.float32(picture[p, c]) - np.float32(reference[p, c])
    return weight * total * total / np.float32(reference.shape[1])


@jit
def _strongest_near(strength, mask, height, width, reach, out):
    """Write the largest marked strength around every pixel of a row with marks: over columns, then along the row."""
    marked, busy = np.zeros((height, width + 2 * reach), np.float32), np.zeros(height, np.uint8)
    for i in range(height):
        line, force, row = marked[i, reach : reach + width], strength[i * width :], mask[i * width :]
        some = np.uint8(0)
        for x in range(width):
            line[x] = force[x] * np.float32(row[x])
            some |= row[x]
        busy[i] = some
    column = np.empty(width + 2 * reach, np.float32)
    for i in range(height):
        if not busy[i]:
            continue  # nothing there to be compared
        column[:] = 0.0
        for y in range(max(i - reach, 0), min(i + reach + 1, height)):
            if busy[y]:
                line = marked[y]
                for x in range(width + 2 * reach):
                    column[x] = max(column[x], line[x])
        best = out[i * width : (i + 1) * width]
        best[:] = 0.0
        for shift in range(2 * reach + 1):
            shifted = column[shift : shift + width]
            for x in range(width):
                best[x] = max(best[x], shifted[x])


@jit
def _drop_halos(picture, reference, strength, limit, place, height, width, weights, halo, mask):
    """Unmark pixels that are far fainter than a marked one near them: blur, ringing, and spread colours."""
    pixels, colour = height * width, reference.shape[1] == 3
    best, wide = np.empty(pixels, np.float32), np.empty(pixels if colour else 1, np.float32)
    _strongest_near(strength, mask, height, width, int(halo[0]), best)
    if colour:
        _strongest_near(strength, mask, height, width, int(halo[2]), wide)
    for p in range(pixels):
        if mask[p] == 0 or place[p] >= 0:
            continue
        if best[p] * (halo[1] * halo[1]) > strength[p]:
            mask[p] = 0
        elif colour and _grey_strength(picture, reference, p, weights[0]) < limit[p]:
            if wide[p] * (halo[3] * halo[3]) > strength[p]:
                mask[p] = 0


@outer
def mark_frame(
    frame: Any,  # (pixels x channels,) uint8, as it came
    change: Any,  # (r,) float32: l_ref - l
    basis: Any,  # (r, pixels x channels) float32
    reference: Any,  # (pixels, channels) uint8
    limit: Any,  # (pixels,) float32
    weights: Any,  # (2,) float32: of grey and of colour
    place: Any,  # (pixels,) int32: row of a dynamic pixel in `samples`, -1 for a quiet one
    lonely: Any,  # (pixels,) uint8: no dynamic pixel within `reach`
    samples: Any,  # (dynamic pixels, channels, m) uint8
    counts: Any,  # (dynamic pixels,) int32: how many of its samples are background
    radius2: int,
    quiet: float,  # weight of a quiet neighbour of that colour, as a share of one whose samples all have it
    need: float,
    reach: int,
    shadow: Any,  # (3,) float32: darkest ratio (above 1: shadows are objects), colour, texture
    halo: Any,  # (4,) float32: reach and ratio below which a pixel is a halo; both for a change of colour alone
    height: int,
    width: int,
    picture: Any,  # (pixels, channels) uint8, scratch: the frame under the reference light
    mask: Any,  # (pixels,) uint8, written
) -> None:
    """Mark pixels that are neither near the reference, nor common around the pixel, nor halos, nor soft shadows."""
    _relight(frame, change, basis, picture.reshape(-1))
    strength = np.empty(limit.size, np.float32)
    _strengths(picture, reference, weights, strength)
    for p in range(limit.size):
        mask[p] = strength[p] > limit[p]
    needed, far, weight = np.float32(need), np.int32(radius2), np.float32(quiet)
    grey = reference.shape[1] == 1
    if grey:
        radius = int(np.ceil(np.sqrt(radius2))) - 1
        _drop_explained_grey(picture, reference, lonely, height, width, radius, weight, needed, reach, mask)
    for i in range(height):
        for j in range(width):
            p = i * width + j
            if mask[p] == 0 or (grey and lonely[p]):
                continue
            if _explained(picture, i, j, reference, height, width, place, samples, counts, far, weight, needed, reach):
                mask[p] = 0
    _drop_halos(picture, reference, strength, limit, place, height, width, weights, halo, mask)
    if shadow[0] >= 1.0:
        return
    for i in range(height):
        for j in range(width):
            p = i * width + j
            if mask[p] == 0 or place[p] >= 0:
                continue
            if _soft_shadow(picture, i, j, reference, height, width, shadow[0], shadow[1], shadow[2]):
                mask[p] = 0


@outer
def average_squares(
    picture: Any,  # (height, width, channels) uint8
    side: int,
    out: Any,  # (ceil(height / side), ceil(width / side), channels) uint8
) -> None:
    """Write the rounded mean over every square; a square cut off by the edge averages the pixels it has."""
    height, width, channels = picture.shape
    sums = np.empty((out.shape[1], channels), np.int32)
    for i in range(out.shape[0]):
        sums[:] = 0
        bottom = min(i * side + side, height)
        for y in range(i * side, bottom):
            for j in range(out.shape[1]):
                for x in range(j * side, min(j * side + side, width)):
                    for c in range(channels):
                        sums[j, c] += picture[y, x, c]
        for j in range(out.shape[1]):
            count = (bottom - i * side) * (min(j * side + side, width) - j * side)
            for c in range(channels):
                out[i, j, c] = (sums[j, c] + count // 2) // count
