// Why two pictures match: lines between their matching patches.
import { byId, counted, element } from "./elements.js";

const SVG = "http://www.w3.org/2000/svg";
const SECOND = 108; // left edge of the second picture; each is 100 wide
let square = 1; // the divided square, as a fraction of the shorter side of a picture

// Offer the comparison of parts if the index stores local features, as /info says.
export function offer(local) {
  byId("parts-option").hidden = !local;
  if (local) square = local.square;
}

// The button of a match that shows the parts; `address` gives that of the picture of the match.
export function button(patches, query, address) {
  const said = patches.length ? counted(patches.length, "matching part") : "No part in common";
  if (!patches.length || !query.url) return element("span", { className: "label", textContent: said });
  const made = element("button", { type: "button", className: "why", textContent: said });
  made.addEventListener("click", () => show(patches, query.thumbnail ?? query.url, address() ?? "data:,", said));
  return made;
}

function show(patches, query, match, said) {
  byId("why-said").textContent = `${said} of the picture and its neighbor.`;
  const lines = patches.map(([x, y, otherX, otherY, similarity]) => drawn("line", {
    x1: 100 * x, y1: 100 * y, x2: SECOND + 100 * otherX, y2: 100 * otherY, opacity: Math.min(1, 0.25 + 0.7 * similarity),
  }));
  byId("why-drawing").replaceChildren(half(query, 0), half(match, SECOND), ...lines);
  byId("why").showModal();
}

// The square in the middle of a picture.
function half(address, left) {
  const side = 100 / square;
  const edge = (100 - side) / 2;
  const made = drawn("svg", { x: left, y: 0, width: 100, height: 100 });
  made.append(drawn("image", {
    href: address, x: edge, y: edge, width: side, height: side, preserveAspectRatio: "xMidYMid slice",
  }));
  return made;
}

function drawn(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
