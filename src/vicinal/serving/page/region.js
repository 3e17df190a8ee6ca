// The region of the picture that is searched: drawn, moved and resized by pointer, touch or keys, or typed in pixels.
import { byId } from "./elements.js";

const SIDES = ["left", "top", "width", "height"];
const MIN_DRAG = 5; // pixels of the screen; less is a click
const MIN_SIZE = 8; // pixels of the picture
const THUMBNAIL = 128; // pixels
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

export class Region {
  // `onSearch` is called to search the region.
  constructor(onSearch) {
    this.stage = byId("stage");
    this.frame = byId("region");
    this.size = null; // width and height of the picture
    this.box = null; // left, top, width and height in its pixels
    this.drag = null;
    this.onSearch = onSearch;
    this.stage.addEventListener("pointerdown", (event) => this.press(event));
    this.stage.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) this.stage.addEventListener(name, () => this.release());
    this.frame.addEventListener("keydown", (event) => this.key(event));
    byId("crop-start").addEventListener("click", () => this.start());
    byId("crop-whole").addEventListener("click", () => this.clear());
    byId("crop-search").addEventListener("click", () => onSearch());
    for (const side of SIDES) byId(`region-${side}`).addEventListener("change", () => this.type());
  }

  // Show another picture's region; a size of null: there is nothing to choose from.
  show(size, box) {
    this.size = size;
    this.drag = null;
    byId("crop").hidden = size === null;
    this.set(box);
  }

  set(box) {
    this.box = box === null ? null : this.inside(box);
    const isChosen = this.box !== null;
    this.stage.classList.toggle("cropping", isChosen);
    this.frame.hidden = !isChosen;
    for (const id of ["crop-search", "crop-whole", "region-help", "region-pixels"]) byId(id).hidden = !isChosen;
    byId("crop-start").hidden = isChosen;
    if (isChosen) this.draw();
  }

  inside([left, top, width, height]) {
    const { width: wide, height: high } = this.size;
    width = clamp(Math.round(width), Math.min(MIN_SIZE, wide), wide);
    height = clamp(Math.round(height), Math.min(MIN_SIZE, high), high);
    return [clamp(Math.round(left), 0, wide - width), clamp(Math.round(top), 0, high - height), width, height];
  }

  draw() {
    const totals = [this.size.width, this.size.height, this.size.width, this.size.height];
    SIDES.forEach((side, at) => {
      this.frame.style[side] = `${(100 * this.box[at]) / totals[at]}%`;
      byId(`region-${side}`).value = this.box[at];
      byId(`region-${side}`).max = totals[at];
    });
    const [left, top, width, height] = this.box;
    this.frame.setAttribute("aria-label", `${width} by ${height} pixels, ${left} from the left, ${top} from the top`);
  }

  start() {
    const { width, height } = this.size;
    this.set([width / 5, height / 5, (3 * width) / 5, (3 * height) / 5]);
    this.frame.focus();
  }

  clear() {
    this.set(null);
    byId("crop-start").focus();
  }

  type() {
    const box = SIDES.map((side) => byId(`region-${side}`).valueAsNumber);
    this.set(box.every(Number.isFinite) ? box : this.box);
  }

  // A place on the screen in pixels of the picture.
  at({ clientX, clientY }) {
    const { left, top, width, height } = byId("picture").getBoundingClientRect();
    const x = (clientX - left) / width;
    const y = (clientY - top) / height;
    return [clamp(x, 0, 1) * this.size.width, clamp(y, 0, 1) * this.size.height];
  }

  press(event) {
    if (this.size === null || event.button !== 0) return;
    if (event.pointerType === "touch" && this.box === null) return; // the page is scrolled
    event.preventDefault();
    this.stage.setPointerCapture(event.pointerId);
    this.drag = { start: [event.clientX, event.clientY], anchor: this.at(event), box: null, isMoved: false };
    if (event.target === this.frame) this.drag.box = this.box;
    if (event.target.dataset.corner) this.drag.anchor = this.opposite(event.target.dataset.corner);
  }

  opposite(corner) {
    const [left, top, width, height] = this.box;
    return [corner.includes("left") ? left + width : left, corner.includes("top") ? top + height : top];
  }

  move(event) {
    if (this.drag === null) return;
    const { start, anchor, box } = this.drag;
    this.drag.isMoved ||= Math.hypot(event.clientX - start[0], event.clientY - start[1]) >= MIN_DRAG;
    if (!this.drag.isMoved) return;
    const [x, y] = this.at(event);
    if (box !== null) this.set([box[0] + x - anchor[0], box[1] + y - anchor[1], box[2], box[3]]);
    else this.set([Math.min(x, anchor[0]), Math.min(y, anchor[1]), Math.abs(x - anchor[0]), Math.abs(y - anchor[1])]);
  }

  release() {
    if (this.drag?.isMoved) this.frame.focus({ preventScroll: true });
    this.drag = null;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter") this.onSearch();
    else if (event.key === "Escape") this.clear();
    else if (event.key in STEPS) this.step(STEPS[event.key], event.shiftKey);
    else return;
    event.preventDefault();
  }

  // The region as a small picture.
  thumbnail() {
    const [left, top, width, height] = this.box;
    const scale = Math.min(1, THUMBNAIL / Math.max(width, height));
    const size = { width: Math.ceil(width * scale), height: Math.ceil(height * scale) };
    const canvas = Object.assign(document.createElement("canvas"), size);
    canvas.getContext("2d").drawImage(byId("picture"), left, top, width, height, 0, 0, size.width, size.height);
    return canvas.toDataURL("image/jpeg");
  }

  step([x, y], isResize) {
    const by = Math.max(1, Math.round(Math.max(this.size.width, this.size.height) / 40));
    const [left, top, width, height] = this.box;
    if (!isResize) this.set([left + by * x, top + by * y, width, height]);
    else this.set([left, top, clamp(width + by * x, 1, this.size.width - left), clamp(height + by * y, 1, this.size.height - top)]);
  }
}
