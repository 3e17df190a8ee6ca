// Review: images are marked to be dropped, relabeled or kept, by keys or by buttons; the decisions are saved as CSV.
const review = data.review;
const decisions = new Map(); // number of an image -> { action, label }
const { save, saved } = reviewBar(decisions, {
  key: "vicinal-review-" + review.key, question: () => `Forget ${decisions.size} decisions?`, csv, refresh,
});
const cells = [...document.querySelectorAll("main .rows button[data-view]")];
const NAMES = { drop: "drop", keep: "keep" };
let current = -1; // index of a cell

// Below each image: the decision, and buttons.
for (const cell of cells) {
  const number = Number(cell.dataset.view);
  const name = data.images[number].label;
  const drop = element("button", { type: "button", className: "drop", textContent: "✕", title: "Drop (x)", tabIndex: -1 });
  const relabel = element("button", { type: "button", className: "relabel", textContent: "✎", title: "Relabel (r)", tabIndex: -1 });
  drop.setAttribute("aria-label", `Drop image of ${name}`);
  relabel.setAttribute("aria-label", `Relabel image of ${name}`);
  drop.addEventListener("click", () => toggle(number, "drop"));
  relabel.addEventListener("click", () => askLabel(number, cell));
  relabel.hidden = !review.hasLabels;
  cell.setAttribute("aria-keyshortcuts", review.hasLabels ? "x r c u" : "x c u");
  cell.after(element("div", { className: "marks" }, drop, relabel), element("span", { className: "decided" }),
    element("span", { className: "file", textContent: review.images[number].path }));
  cell.addEventListener("focus", () => { setCurrent(cells.indexOf(cell)); });
}
function refresh() {
  for (const cell of cells) {
    const decision = decisions.get(Number(cell.dataset.view));
    const item = cell.parentElement;
    if (decision) item.dataset.decision = decision.action;
    else delete item.dataset.decision;
    item.querySelector(".decided").textContent = !decision ? "" : NAMES[decision.action] || "→ " + decision.label;
    item.querySelector(".drop").setAttribute("aria-pressed", String(decision?.action === "drop"));
    item.querySelector(".relabel").setAttribute("aria-pressed", String(decision?.action === "relabel"));
  }
  const counts = { drop: 0, relabel: 0, keep: 0 };
  for (const { action } of decisions.values()) counts[action] += 1;
  const said = Object.entries(counts).filter(([, count]) => count).map(([action, count]) => `${count} ${action}`);
  byId("review-count").textContent = said.length ? "Decisions: " + said.join(", ") : "No decisions yet";
  byId("review-export").disabled = byId("review-clear").disabled = !decisions.size;
}
function restore() {
  const before = review.decided.map(([number, action, label]) => [number, { action, label }]);
  for (const [number, decision] of saved() || before) {
    if (review.images[number]) decisions.set(number, decision);
  }
}
function decide(number, action, label = "") {
  decisions.set(number, { action, label });
  save();
}
function toggle(number, action) {
  if (decisions.get(number)?.action === action) decisions.delete(number);
  else decisions.set(number, { action, label: "" });
  save();
}

// A new label.
const names = element("datalist", { id: "relabel-names" }, ...review.labels.map((value) => element("option", { value })));
const nameField = element("input", { id: "relabel-name", autocomplete: "off" });
nameField.setAttribute("list", "relabel-names");
const relabelDialog = element("dialog", { id: "relabel" },
  element("h2", { textContent: "New label" }),
  element("label", {}, "Label of this image ", nameField), names,
  element("div", { className: "bar" },
    element("button", { type: "button", textContent: "Cancel", onclick: () => relabelDialog.close() }),
    element("button", { type: "button", id: "relabel-ok", textContent: "Relabel", onclick: () => setLabel() })));
relabelDialog.setAttribute("aria-label", "New label");
document.body.append(relabelDialog);
let relabeled = -1;
function askLabel(number, cell = null) {
  if (!review.hasLabels) return;
  relabeled = number;
  const section = cell?.closest("section")?.id;
  const suggested = (review.suggestions[section] || []).find(([image, action]) => image === number && action === "relabel");
  nameField.value = decisions.get(number)?.label || suggested?.[2] || data.images[number].label;
  relabelDialog.showModal();
  nameField.select();
}
function setLabel() {
  const label = nameField.value.trim();
  if (!label) return;
  relabelDialog.close();
  if (label === data.images[relabeled].label) decide(relabeled, "keep");
  else decide(relabeled, "relabel", label);
}
nameField.addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  setLabel();
});

// Suggestions of a whole section.
for (const [section, all] of Object.entries(review.suggestions)) {
  const isFound = (number) => byId(section).querySelector(`[data-view="${number}"]:is(.query, .plain)`); // no neighbor
  const list = all.filter(([number]) => isFound(number));
  if (!list.length) continue;
  const text = `Accept ${list.length === 1 ? "the suggestion" : `all ${list.length} suggestions`} shown here`;
  const button = element("button", { type: "button", className: "suggest", textContent: text });
  button.addEventListener("click", () => {
    for (const [number, action, label] of list) {
      if (!decisions.has(number)) decisions.set(number, { action, label }); // earlier decisions stay
    }
    save();
  });
  byId(section).querySelector(".rows").before(button);
}

// Keys.
function setCurrent(place) {
  if (current >= 0) cells[current].parentElement.classList.remove("current");
  current = place;
  cells[current].parentElement.classList.add("current");
}
function go(place) {
  if (!cells.length) return;
  const step = place < current ? -1 : 1;
  place = Math.min(Math.max(place, 0), cells.length - 1);
  while (cells[place] && !cells[place].checkVisibility()) place += step; // folded on a phone
  if (!cells[place]) return;
  cells[place].focus({ preventScroll: true });
  cells[place].parentElement.scrollIntoView({ block: "nearest", behavior: "instant" });
}
function goEntry(step) { // the first image of the next or the previous row
  const rows = [...document.querySelectorAll("main .rows > [data-row]")].filter((row) => row.querySelector("button[data-view]"));
  const at = current < 0 ? -1 : rows.indexOf(cells[current].closest("[data-row]"));
  const row = rows[Math.min(Math.max(at + step, 0), rows.length - 1)];
  if (row) go(cells.indexOf(row.querySelector("button[data-view]")));
}
const acts = {
  x: (number) => toggle(number, "drop"),
  d: (number) => toggle(number, "drop"),
  c: (number) => toggle(number, "keep"),
  u: (number) => { decisions.delete(number); save(); },
  r: (number, cell) => askLabel(number, cell),
};
const moves = { j: () => go(current + 1), k: () => go(current - 1) };
const arrows = { ArrowRight: moves.j, ArrowLeft: moves.k, ArrowDown: () => goEntry(1), ArrowUp: () => goEntry(-1) };
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || relabelDialog.open) return;
  if (event.target.matches("input, select, textarea, canvas")) return;
  const isOnCell = cells.includes(document.activeElement);
  const act = Object.hasOwn(acts, event.key) ? acts[event.key] : null;
  if (viewer.open) {
    if (act) act(items[at].image, current >= 0 ? cells[current] : null);
  } else if (Object.hasOwn(moves, event.key)) {
    moves[event.key]();
  } else if (isOnCell && Object.hasOwn(arrows, event.key)) {
    arrows[event.key]();
  } else if (act && current >= 0) {
    act(Number(cells[current].dataset.view), cells[current]);
  } else {
    return;
  }
  if (act || !viewer.open) event.preventDefault();
});

// The file.
function csv() {
  const lines = [...decisions].map(([number, { action, label }]) => ({ ...review.images[number], action, label }));
  lines.sort((one, other) => one.row - other.row);
  const rows = lines.map(({ path, row, action, label }) => [quoted(path), row, action, quoted(label)].join(","));
  return ["path,row,decision,new_label", ...rows, ""].join("\n");
}
restore();
refresh();
