"""
What moves in a video
=====================

A fixed camera looks at a street: people and cars pass, a tree moves in the wind, the light changes. Every frame is a
row of a matrix of bytes. Its low-rank part is the empty street. `lrpca.video.separate` returns a mask of the moving
objects for every frame.
"""

import matplotlib.pyplot as plt
import numpy as np

import lrpca
from lrpca import metrics

# %%
# The scene is rendered, so its background and foreground are known exactly. You can also pass the path of a video file
# or of a folder of pictures.

scene = lrpca.datasets.street_scene()
print(f"{len(scene.frames)} frames of {scene.frames.shape[2]}x{scene.frames.shape[1]}, {scene.frames.dtype}")

# %%
# One call, without settings.

result = lrpca.video.separate(scene.frames)
assert result.masks is not None
score = metrics.precision_recall_f(result.masks, scene.foreground)
print(f"precision {score.precision:.3f}, recall {score.recall:.3f}, F-measure {score.f:.3f}")

# %%
# Three frames. The background has the light of the frame. Marked pixels are white. In the last column, missed pixels
# are blue and wrongly marked ones orange.


def compare(found: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return a picture: right white, missed blue, wrong orange."""
    picture = np.zeros((*found.shape, 3))
    picture[found & true] = 1.0
    picture[~found & true] = (0.0, 0.45, 0.7)
    picture[found & ~true] = (0.9, 0.6, 0.0)
    return picture


moments = [60, 150, 240]
figure, axes = plt.subplots(3, 4, figsize=(10, 5.4), layout="constrained")
for row, t in zip(axes, moments, strict=True):
    masks = [result.masks[t], compare(result.masks[t], scene.foreground[t])]
    for ax, picture in zip(row, [scene.frames[t], result.background(t), *masks], strict=True):
        ax.imshow(picture, cmap="gray", vmin=0, vmax=255 if picture.dtype == np.uint8 else 1)
        ax.set(xticks=[], yticks=[])
    row[0].set_ylabel(f"frame {t + 1}")
for ax, title in zip(axes[0], ["frame", "background", "mask", "errors"], strict=True):
    ax.set_title(title)

# %%
# The moving tree is not marked: leaves change often, in small pieces, and only briefly. The picture shows where moving
# background was found. Legs look similar where many people walk.

_, learned = result.scenes[-1]
figure, ax = plt.subplots(figsize=(5, 3.4), layout="constrained")
ax.imshow(scene.frames[0], cmap="gray")
ax.imshow(np.ma.masked_equal(learned.dynamic, False), cmap="autumn", alpha=0.6)
ax.set(title=f"moving background, {learned.dynamic.mean():.1%} of the picture", xticks=[], yticks=[])

# %%
# The share of foreground in every frame. With `sensitivity` above 1, fainter objects are marked; below 1, only clearer
# ones.

figure, ax = plt.subplots(figsize=(10, 3), layout="constrained")
seconds = np.arange(result.n_frames) / result.rate
ax.plot(seconds, scene.foreground.mean(axis=(1, 2)), color="0.6", linewidth=4, label="truth")
for sensitivity, colour in ((0.5, "#0072B2"), (1.0, "#009E73"), (2.0, "#D55E00")):
    changed = lrpca.video.separate(scene.frames, sensitivity=sensitivity)
    assert changed.masks is not None
    f = metrics.f_measure(changed.masks, scene.foreground)
    ax.plot(seconds, changed.area, color=colour, linewidth=1.2, label=f"sensitivity {sensitivity:g}, F {f:.3f}")
ax.yaxis.set_major_formatter("{x:.0%}")
ax.set(xlabel="seconds", ylabel="foreground", ylim=(0, None), xlim=(0, seconds[-1]))
ax.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1))

# %%
# Live: one frame in, one mask out. The separator knows only the past, so the first frames are worse.

separator = lrpca.video.Separator()
live = np.stack([separator.apply(frame) > 0 for frame in scene.frames])
for name, part in (("first second", slice(25)), ("the rest", slice(25, None))):
    f = metrics.f_measure(live[part], scene.foreground[part])
    whole = metrics.f_measure(result.masks[part], scene.foreground[part])
    print(f"{name:12s}: F-measure live {f:.3f}, with all frames {whole:.3f}")
plt.show()
