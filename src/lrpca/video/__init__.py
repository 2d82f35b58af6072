"""Video: a clip split into its background and what moves in front of it.

`separate` takes a file, a folder of pictures or an array and gives masks, or a folder of videos and a page; `Separator`
takes frames one by one. Reading and writing files needs the extra ``video`` (PyAV); arrays need nothing.
"""

from lrpca.video.reading import open_frames
from lrpca.video.separation import Progress, Separation, separate
from lrpca.video.separator import Separator

__all__ = ["Progress", "Separation", "Separator", "open_frames", "separate"]
