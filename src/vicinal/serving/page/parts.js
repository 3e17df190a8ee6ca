// Why two pictures match: lines between their matching patches.
import { byId, counted, element } from "./elements.js";

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
  drawMatchingPatches(byId("why-drawing"), query, match, patches, square); // of matching_patches.js
  byId("why").showModal();
}
