const data = JSON.parse(document.getElementById("page-data").textContent);

// Images: each is in the file once, and put wherever it is shown.
const CRISP = 64; // pixels; smaller images are enlarged without blur
const sourceOf = (number) => data.images[number].src;
function fill(image, number) {
  const source = sourceOf(number);
  image.hidden = source === null;
  if (source !== null) image.src = "data:image/webp;base64," + source;
}
function sharpen(image) {
  image.classList.toggle("tiny", Math.max(image.naturalWidth, image.naturalHeight) < CRISP);
}
for (const image of document.querySelectorAll("img")) image.addEventListener("load", () => sharpen(image));
for (const image of document.querySelectorAll("img[data-image]")) {
  if (sourceOf(image.dataset.image) !== null) {
    fill(image, image.dataset.image);
  } else {
    const nothing = document.createElement("span");
    nothing.textContent = "cannot be read";
    image.parentElement.classList.add("nothing");
    image.replaceWith(nothing);
  }
}

// Navigation: unfolded where there is room beside the page; the section that is read is marked.
const isNarrow = window.matchMedia("(max-width: 54rem)");
const unfold = () => { byId("sections").open = !isNarrow.matches; };
isNarrow.addEventListener("change", unfold);
unfold();
const links = [...document.querySelectorAll("nav a")];
function markSection() {
  const top = (link) => document.querySelector(link.hash).getBoundingClientRect().top;
  const atEnd = window.innerHeight + window.scrollY >= root.scrollHeight - 2;
  const passed = links.filter((link) => top(link) <= window.innerHeight / 3);
  const current = atEnd && window.scrollY > 0 ? links.at(-1) : passed.at(-1) || links[0];
  for (const link of links) {
    if (link === current) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}
let marking = false; // once a picture of the screen is enough
window.addEventListener("scroll", () => {
  if (marking) return;
  marking = true;
  window.requestAnimationFrame(() => {
    markSection();
    marking = false;
  });
}, { passive: true });
markSection();

// The viewer: one image large, beside the query it was found for; its neighbors by the arrow keys.
const viewer = byId("viewer");
let items = [];
let at = 0;
function show(place) {
  if (place < 0 || place >= items.length) return;
  at = place;
  const { query } = items[at];
  byId("viewer-title").textContent = `Image ${at + 1} of ${items.length}`;
  frame("found", items[at]);
  byId("query").hidden = query === null;
  if (query !== null) frame("query", query);
  showPatches(items[at]);
  byId("viewer-before").disabled = at === 0;
  byId("viewer-next").disabled = at === items.length - 1;
}
function frame(name, { image, note, kind }) {
  const { label, file, src } = data.images[image];
  const picture = byId(`${name}-image`);
  byId(name).className = kind;
  fill(picture, image);
  picture.alt = `Image of ${label}`;
  byId(`${name}-label`).textContent = label;
  byId(`${name}-note`).textContent = src === null ? `${note} (no image)` : note;
  byId(`${name}-file`).textContent = file;
}
function showPatches({ query, image }) { // of a page that was re-ranked by local features
  const patches = query === null ? undefined : data.patches?.[`${query.image} ${image}`];
  const isDrawn = Boolean(patches?.length) && [query.image, image].every((number) => sourceOf(number) !== null);
  byId("viewer-patches").toggleAttribute("hidden", !isDrawn);
  viewer.querySelector(".pair").classList.toggle("drawn", isDrawn);
  if (patches !== undefined) byId("found-note").textContent += `, ${patches.length || "no"} matching part${patches.length === 1 ? "" : "s"}`;
  if (isDrawn) drawMatchingPatches(byId("viewer-patches"), byId("query-image").src, byId("found-image").src, patches, data.square);
}
function enlarge(list, place) {
  items = list;
  show(place);
  viewer.showModal();
}
function listOf(cell) { // the images of a cell's row, each beside the query of its list
  const cells = [...cell.closest("[data-row]").querySelectorAll("button[data-view]")];
  let query = null;
  const list = cells.map(({ dataset, className }) => {
    const item = { image: Number(dataset.view), note: dataset.note, kind: className.replace("cell ", "") };
    if (item.kind === "query") query = item;
    return { ...item, query: item.kind === "query" ? null : query };
  });
  return [cells, list];
}
function unfoldCells(button) { // the images for which a phone has no room
  const isOpen = button.previousElementSibling.classList.toggle("all");
  button.setAttribute("aria-expanded", String(isOpen));
  button.textContent = isOpen ? "fewer" : button.dataset.text;
}
document.addEventListener("click", (event) => {
  if (event.target.matches(".more")) unfoldCells(event.target);
  const cell = event.target.closest("button[data-view]");
  if (cell === null) return;
  const [cells, list] = listOf(cell);
  enlarge(list, cells.indexOf(cell));
});
byId("viewer-close").addEventListener("click", () => viewer.close());
byId("viewer-before").addEventListener("click", () => show(at - 1));
byId("viewer-next").addEventListener("click", () => show(at + 1));
viewer.addEventListener("click", (event) => {
  if (event.target !== viewer) return;
  const box = viewer.getBoundingClientRect();
  const inside = event.clientX >= box.left && event.clientX <= box.right && event.clientY >= box.top && event.clientY <= box.bottom;
  if (!inside) viewer.close();
});
viewer.addEventListener("keydown", (event) => {
  if (event.key === "ArrowLeft") show(at - 1);
  if (event.key === "ArrowRight") show(at + 1);
});
