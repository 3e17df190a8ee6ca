// The map: a canvas that is moved by pointer, wheel, buttons and keys.
function makeMap(canvas, map) {
  const context = canvas.getContext("2d");
  const tip = byId("map-tip");
  const said = byId("map-said");
  const chooser = byId("map-class");
  const side = map.side;
  const most = 60;
  const view = { zoom: 1, x: 0, y: 0 };
  let current = -1;
  let byKeys = false; // whether a key chose it: then a pointer that hardly moves, or leaves, does not drop it
  let rest = null; // where the pointer was first seen after that,
  let isAway = false; // and whether it has been moved from there
  let only = -1;
  let width = 0;
  let height = 0;

  const span = (places) => {
    const [low, high] = places.reduce(([least, most], place) => [Math.min(least, place), Math.max(most, place)], [side, 0]);
    return Math.max(1, high - low);
  };
  const spans = [span(map.x), span(map.y)];
  const unit = () => 0.94 * Math.min(width / spans[0], height / spans[1]) * view.zoom;
  const placeX = (point) => width / 2 + view.x + (map.x[point] - side / 2) * unit();
  const placeY = (point) => height / 2 + view.y - (map.y[point] - side / 2) * unit();
  const isOpen = (point) => only < 0 || map.label[point] === only;
  const color = (label) => {
    const hue = Math.round((label * 137.508) % 360);
    const band = label % 3; // colors of similar hue differ in lightness
    return isDark() ? `oklch(${0.88 - 0.15 * band} 0.14 ${hue})` : `oklch(${0.4 + 0.14 * band} 0.15 ${hue})`;
  };

  function draw() {
    const ratio = window.devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const radius = Math.min(7, 2.6 + 0.6 * Math.log2(view.zoom) + (map.x.length < 500 ? 1.2 : 0));
    const closed = (point) => !isOpen(point);
    for (const faint of [true, false]) { // those that are chosen above the others
      context.globalAlpha = faint ? 0.12 : 0.85;
      for (let point = 0; point < map.x.length; point++) {
        if (closed(point) === faint) dot(point, radius);
      }
    }
    context.globalAlpha = 1;
    if (current >= 0) ring(current, radius + 4);
    canvas.dataset.zoom = view.zoom.toFixed(3);
    canvas.dataset.current = String(current);
    placeTip();
  }
  function dot(point, radius) {
    const x = placeX(point);
    const y = placeY(point);
    if (x < -radius || y < -radius || x > width + radius || y > height + radius) return;
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    if (map.match[point] === 0) { // its nearest image is of another class
      context.lineWidth = 1.8;
      context.strokeStyle = color(map.label[point]);
      context.stroke();
    } else {
      context.fillStyle = color(map.label[point]);
      context.fill();
    }
  }
  function ring(point, radius) {
    context.beginPath();
    context.arc(placeX(point), placeY(point), radius, 0, 2 * Math.PI);
    context.lineWidth = 2.5;
    context.strokeStyle = isDark() ? "#ffffff" : "#000000";
    context.stroke();
  }

  const verdicts = { "1": "its nearest image is of its class", "0": "its nearest image is of another class", "-1": "" };
  const noteOf = (point) => ["on the map", verdicts[map.match[point]]].filter(Boolean).join("; ");
  function choose(point, aloud, isKey = false) {
    byKeys = isKey;
    rest = null;
    isAway = false;
    if (point === current) return;
    current = point;
    tip.hidden = point < 0;
    if (point >= 0) {
      fill(byId("map-tip-image"), map.image[point]);
      byId("map-tip-label").textContent = map.classes[map.label[point]];
      byId("map-tip-note").textContent = verdicts[map.match[point]];
      if (aloud) said.textContent = `${map.classes[map.label[point]]}: ${data.images[map.image[point]].file}; ${noteOf(point)}`;
    }
    draw();
  }
  function hover(place) {
    rest ??= place;
    isAway ||= Math.hypot(place.x - rest.x, place.y - rest.y) >= 24;
    if (byKeys && !isAway) return;
    const point = nearest(place.x, place.y, 14);
    if (point >= 0 || !byKeys) choose(point, false);
  }
  function placeTip() {
    if (current < 0) return;
    const x = placeX(current);
    const y = placeY(current);
    tip.hidden = x < 0 || y < 0 || x > width || y > height;
    const left = x > width / 2 ? x - tip.offsetWidth - 14 : x + 14;
    tip.style.left = Math.max(0, left) + "px";
    tip.style.top = Math.max(0, Math.min(height - tip.offsetHeight, y - tip.offsetHeight / 2)) + "px";
  }
  function nearest(x, y, within, allowed) {
    let best = -1;
    let least = within * within;
    for (let point = 0; point < map.x.length; point++) {
      const distance = (placeX(point) - x) ** 2 + (placeY(point) - y) ** 2;
      if (distance <= least && isOpen(point) && (allowed === undefined || allowed(point))) {
        best = point;
        least = distance;
      }
    }
    return best;
  }

  function zoomAt(factor, x, y) {
    const zoom = Math.min(most, Math.max(1, view.zoom * factor));
    const change = zoom / view.zoom;
    view.x = x - width / 2 - (x - width / 2 - view.x) * change;
    view.y = y - height / 2 - (y - height / 2 - view.y) * change;
    view.zoom = zoom;
    hold();
    draw();
  }
  function hold() { // the map cannot be lost from sight
    const reach = (Math.max(...spans) * unit()) / 2;
    view.x = Math.min(reach, Math.max(-reach, view.x));
    view.y = Math.min(reach, Math.max(-reach, view.y));
  }
  function reset() {
    Object.assign(view, { zoom: 1, x: 0, y: 0 });
    draw();
  }
  function step(x, y) {
    if (current < 0 || !isOpen(current)) return choose(nearest(width / 2, height / 2, Infinity), true, true);
    const [fromX, fromY] = [placeX(current), placeY(current)];
    const isAhead = (point) => {
      const [byX, byY] = [placeX(point) - fromX, placeY(point) - fromY];
      const ahead = byX * x + byY * y;
      return point !== current && ahead > 0 && ahead >= Math.abs(byX * y - byY * x);
    };
    const next = nearest(fromX, fromY, Infinity, isAhead);
    if (next >= 0) {
      choose(next, true, true);
      bringIn(next);
    }
  }
  function bringIn(point) {
    const margin = 30;
    const [x, y] = [placeX(point), placeY(point)];
    view.x += Math.max(0, margin - x) - Math.max(0, x - (width - margin));
    view.y += Math.max(0, margin - y) - Math.max(0, y - (height - margin));
    draw();
  }
  function open(point) {
    if (point >= 0) enlarge([{ image: map.image[point], note: noteOf(point), kind: "plain", query: null }], 0);
  }

  const keys = {
    "+": () => zoomAt(1.5, width / 2, height / 2),
    "=": () => zoomAt(1.5, width / 2, height / 2),
    "-": () => zoomAt(1 / 1.5, width / 2, height / 2),
    "0": reset,
    Enter: () => open(current),
    Escape: () => choose(-1, false),
    ArrowLeft: () => step(-1, 0),
    ArrowRight: () => step(1, 0),
    ArrowUp: () => step(0, -1),
    ArrowDown: () => step(0, 1),
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  });

  const pointers = new Map();
  let moved = 0;
  const local = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return; // the left one, a finger or a pen
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, local(event));
    moved = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const now = local(event);
    const before = pointers.get(event.pointerId);
    if (before === undefined) return hover(now);
    const others = [...pointers].filter(([id]) => id !== event.pointerId);
    moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
    if (others.length === 0) {
      view.x += now.x - before.x;
      view.y += now.y - before.y;
      hold();
      draw();
    } else { // two fingers
      const fixed = others[0][1];
      const apart = (place) => Math.hypot(place.x - fixed.x, place.y - fixed.y);
      zoomAt(apart(now) / Math.max(1, apart(before)), fixed.x, fixed.y);
    }
    pointers.set(event.pointerId, now);
  });
  canvas.addEventListener("pointerup", (event) => {
    const place = local(event);
    const wasClick = pointers.size === 1 && pointers.has(event.pointerId) && event.button === 0 && moved < 6;
    pointers.delete(event.pointerId);
    if (wasClick) {
      choose(nearest(place.x, place.y, 14), true);
      open(current);
    }
  });
  canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("pointerleave", () => byKeys || choose(-1, false));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== canvas) return; // the page scrolls
    event.preventDefault();
    const place = local(event);
    zoomAt(Math.exp(-0.0015 * event.deltaY), place.x, place.y);
  }, { passive: false });

  byId("map-in").addEventListener("click", () => zoomAt(1.5, width / 2, height / 2));
  byId("map-out").addEventListener("click", () => zoomAt(1 / 1.5, width / 2, height / 2));
  byId("map-reset").addEventListener("click", reset);
  function filter(label) {
    only = label;
    chooser.value = String(label);
    if (current >= 0 && !isOpen(current)) choose(-1, false);
    const count = map.label.filter((each) => each === label).length;
    said.textContent = label < 0 ? "All classes." : `${map.classes[label]}: ${count} images.`;
    for (const button of byId("map-legend").querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.label) === label));
    }
    draw();
  }
  chooser.addEventListener("change", () => filter(Number(chooser.value)));
  function drawLegend() {
    if (map.classes.length > 24) return;
    const entries = map.classes.map((name, label) => {
      const entry = document.createElement("li");
      const button = document.createElement("button");
      const spot = document.createElement("i");
      button.type = "button";
      button.dataset.label = String(label);
      button.setAttribute("aria-pressed", String(label === only));
      spot.style.background = color(label);
      const text = document.createElement("span");
      text.textContent = name;
      text.dir = "auto";
      button.append(spot, text);
      button.addEventListener("click", () => filter(only === label ? -1 : label));
      entry.append(button);
      return entry;
    });
    byId("map-legend").replaceChildren(...entries);
  }

  function fit() {
    const ratio = window.devicePixelRatio || 1;
    width = canvas.clientWidth;
    height = canvas.clientHeight;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    draw();
  }
  new ResizeObserver(fit).observe(canvas);
  redraws.push(() => {
    drawLegend();
    draw();
  });
  drawLegend();
  fit();
}

if (byId("map-canvas") !== null) makeMap(byId("map-canvas"), data.map);
