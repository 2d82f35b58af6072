"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const video = byId("video");
  if (!video) return;
  const { rate, step, clipRate, nFrames, shares, start } = data;
  const last = shares.length - 1;
  const player = byId("player"), stage = byId("stage"), scrubber = byId("scrubber"), plot = byId("plot");
  const moments = [...document.querySelectorAll(".strip button")];
  const views = [...document.querySelectorAll(".views button")];
  let shown = 0;       // number of the preview's frame on the screen
  let wanted = null;   // where a seek is to end; later wishes replace earlier ones
  let sought = null;   // where the running one ends
  let played = false;  // the player, rather than the last wish, led to where it is

  // ------------------------------------------------------------------------------------------ words
  const clock = (seconds) => {
    const tenths = Math.round(seconds * 10), s = Math.floor(tenths / 10);
    const two = (x) => String(x).padStart(2, "0");
    const hours = Math.floor(s / 3600), minutes = Math.floor(s / 60) % 60;
    return (hours ? `${hours}:${two(minutes)}` : `${minutes}`) + `:${two(s % 60)}.${tenths % 10}`;
  };
  const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 2 : 1)} %`;
  const frameOf = (k) => Math.min(k * step, nFrames - 1);
  const position = (frame) => nFrames > 1 ? frame / (nFrames - 1) : 0;

  // ------------------------------------------------------------------------------------------ state shown
  const show = (k) => {
    shown = k;
    const frame = frameOf(k), seconds = frame / clipRate;
    byId("time").textContent = `${clock(seconds)} / ${clock(nFrames / clipRate)}`;
    byId("place").textContent = `frame ${frame + 1} of ${nFrames}`;
    byId("share").textContent = `foreground ${percent(shares[k])}`;
    scrubber.value = k;
    scrubber.style.setProperty("--done", `${last ? 100 * k / last : 0}%`);
    scrubber.setAttribute("aria-valuetext", `frame ${frame + 1}, ${clock(seconds)}, foreground ${percent(shares[k])}`);
    byId("cursor").style.left = `${100 * position(frame)}%`;
    for (const button of moments) {
      button.setAttribute("aria-current", String(Math.round(button.dataset.frame / step) === k));
    }
  };

  // ------------------------------------------------------------------------------------------ seeking
  // One seek at a time: while one runs, only the last wish is remembered, so dragging stays smooth.
  const begin = () => { sought = wanted; video.currentTime = (sought + 0.5) / rate; };
  const seek = (k) => {
    const target = Math.max(0, Math.min(last, Math.round(k)));
    const idle = wanted === null;
    wanted = target;
    played = false;
    show(target);
    if (idle && video.readyState > 0) begin();
  };
  video.addEventListener("seeked", () => {
    if (wanted === null) return;
    if (sought === wanted) wanted = null; else begin();
  });
  video.addEventListener("loadedmetadata", () => { if (wanted !== null) begin(); });
  const settle = (seconds) => {
    if (wanted === null) show(Math.max(0, Math.min(last, Math.floor(seconds * rate))));
  };
  if (video.requestVideoFrameCallback) {
    // The time is the one at which the picture begins; a little more of it survives the rounding.
    const follow = (_, picture) => { settle(picture.mediaTime + 0.1 / rate); video.requestVideoFrameCallback(follow); };
    video.requestVideoFrameCallback(follow);
  } else {
    const follow = () => { settle(video.currentTime); if (!video.paused) requestAnimationFrame(follow); };
    for (const event of ["play", "pause", "seeked"]) video.addEventListener(event, follow);
  }

  // ------------------------------------------------------------------------------------------ playing
  const toggle = () => {
    if (!video.paused) { video.pause(); return; }
    if (shown === last) seek(0);
    const started = video.play();
    if (started) started.catch((error) => { if (error.name !== "AbortError") fail(error.message); });
  };
  const mirror = () => {
    player.classList.toggle("playing", !video.paused);
    byId("play").setAttribute("aria-label", video.paused ? "Play" : "Pause");
  };
  for (const event of ["play", "pause", "ended"]) video.addEventListener(event, mirror);
  // A hasty player may have left out the last pictures. A seek to the last one ends the video too, and its event may
  // come after the next wish: only what was played to its end counts.
  video.addEventListener("play", () => { played = true; });
  video.addEventListener("ended", () => { if (played && shown !== last) seek(last); });
  const stepBy = (frames) => { video.pause(); seek((wanted ?? shown) + frames); };
  byId("play").addEventListener("click", toggle);
  byId("back").addEventListener("click", () => stepBy(-1));
  byId("forward").addEventListener("click", () => stepBy(1));
  const speed = byId("speed");
  const setSpeed = () => { video.defaultPlaybackRate = video.playbackRate = Number(speed.value); };
  speed.addEventListener("change", setSpeed);
  scrubber.addEventListener("input", () => { video.pause(); seek(Number(scrubber.value)); });

  // ------------------------------------------------------------------------------------------ views, moments, chart
  const enlarge = (name) => {
    stage.dataset.view = name;
    for (const view of views) view.setAttribute("aria-pressed", String(view.dataset.view === name));
  };
  for (const view of views) {
    view.addEventListener("click", () => enlarge(stage.dataset.view === "all" ? view.dataset.view : "all"));
  }
  for (const button of moments) {
    button.addEventListener("click", () => {
      video.pause();
      seek(button.dataset.frame / step);
      const box = stage.getBoundingClientRect();
      if (box.top < 0 || box.bottom > innerHeight) player.scrollIntoView({ block: "start" });
    });
  }
  const under = (event) => {
    const box = plot.getBoundingClientRect();
    const frame = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)) * (nFrames - 1);
    return Math.min(last, Math.round(frame / step));
  };
  const tip = byId("tip");
  plot.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    plot.setPointerCapture(event.pointerId);
    video.pause();
    seek(under(event));
  });
  plot.addEventListener("pointermove", (event) => {
    const k = under(event), width = plot.clientWidth;
    if (plot.hasPointerCapture(event.pointerId)) seek(k);
    tip.hidden = false;
    tip.textContent = `${clock(frameOf(k) / clipRate)} · ${percent(shares[k])}`;
    const half = tip.offsetWidth / 2;
    tip.style.left = `${Math.max(half, Math.min(width - half, width * position(frameOf(k))))}px`;
  });
  plot.addEventListener("pointerleave", () => { tip.hidden = true; });

  // ------------------------------------------------------------------------------------------ keys
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target === speed) return;
    const second = Math.max(1, Math.round(clipRate / step));
    const keys = {
      " ": () => event.target.closest("button, a") ? false : toggle(),
      ArrowLeft: () => stepBy(event.shiftKey ? -second : -1),
      ArrowRight: () => stepBy(event.shiftKey ? second : 1),
      Home: () => stepBy(-last - 1),
      End: () => stepBy(last + 1),
      0: () => enlarge("all"),
    };
    views.forEach((view, k) => { keys[k + 1] = () => enlarge(view.dataset.view); });
    if (!(event.key in keys) || keys[event.key]() === false) return;
    event.preventDefault();
  });

  // ------------------------------------------------------------------------------------------ the video itself
  const fail = (why) => {
    byId("problem").hidden = false;
    byId("problem").textContent = `The preview does not play here (${why}); open the files below instead.`;
  };
  const bytesOf = (text) => {
    const binary = atob(text), bytes = new Uint8Array(binary.length);
    for (let k = 0; k < binary.length; k++) bytes[k] = binary.charCodeAt(k);
    return bytes;
  };
  video.addEventListener("error", () => fail(video.error ? video.error.message || `error ${video.error.code}` : "error"));
  setSpeed();
  seek(start);
  const text = byId("video-data");
  video.src = URL.createObjectURL(new Blob([bytesOf(text.textContent)], { type: "video/mp4" }));
  text.remove();
})();
