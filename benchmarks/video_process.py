"""A long video from file to files in a process of its own: seconds and peak memory; and the making of the video.

    python benchmarks/video_process.py FILE FOLDER      prints one line of JSON

`ask` runs that from another process. `make_long` loops footage without encoding it anew.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

from fresh_process import _peak

WIDTH, HEIGHT, RATE = 1280, 720, 30


def make_long(footage: Path, path: Path, minutes: float) -> int:
    """Write footage as 720p at 30 frames per second, looped to so many minutes; return the number of frames.

    It is encoded once; the packets are then written again and again.
    """
    import av

    once = path.with_name("once.mp4")
    _encode(footage, once)
    wanted, count = round(60 * RATE * minutes), 0
    with av.open(str(path), "w") as target:
        stream = None
        while count < wanted:
            with av.open(str(once)) as source:
                template = source.streams.video[0]
                if stream is None:
                    stream = target.add_stream_from_template(template)
                shift = round(count / RATE / template.time_base)
                # Without B-frames the packets are in the order of the frames.
                for packet in source.demux(template):
                    if packet.dts is None or count == wanted:
                        continue
                    packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                    packet.stream = stream
                    target.mux(packet)
                    count += 1
    once.unlink()
    return count


def _encode(footage: Path, path: Path) -> None:
    import av

    with av.open(str(footage)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream("libx264", rate=RATE, options={"preset": "veryfast", "crf": "20", "bf": "0"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number, frame in enumerate(source.decode(video=0)):
            scaled = frame.reformat(WIDTH, HEIGHT, "yuv420p")
            scaled.pts, scaled.time_base = number, Fraction(1, RATE)
            target.mux(stream.encode(scaled))
        target.mux(stream.encode(None))


def ask(video: Path, folder: Path) -> dict[str, Any]:
    """Separate a file into a folder in a new process; return seconds, peak memory in bytes and frames."""
    command = [sys.executable, str(Path(__file__)), str(video), str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def separate_files(source: str, folder: str) -> dict[str, Any]:
    """Run the separation as a user does, and return what it took."""
    import lrpca

    began = time.perf_counter()
    result = lrpca.video.separate(source, folder)
    return {
        "seconds": time.perf_counter() - began,
        "peak": _peak(),
        "frames": result.n_frames,
        "complete": result.complete,
        "downscale": result.downscale,
        "size": sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()),
    }


if __name__ == "__main__":
    print(json.dumps(separate_files(*sys.argv[1:])))
