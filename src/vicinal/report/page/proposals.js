// Proposals: the photos of each are one individual of the gallery, a new one, or not sure; saved as CSV.
const review = data.review;
const identities = new Set(review.identities);
const decisions = new Map(); // number of a proposal -> { action, name, out: [paths that are taken out] }
const { save, saved } = reviewBar(decisions, {
  key: "vicinal-proposals-" + review.key, question: () => `Forget the decisions about ${decisions.size} individuals?`,
  csv, refresh,
});
const ACTIONS = [["same", "Same"], ["new", "New"], ["not sure", "Not sure"]];
document.body.append(element("datalist", { id: "identities" }, ...review.identities.map((value) => element("option", { value }))));

function decisionOf(number) {
  const { name, isNew } = review.proposals[number];
  return decisions.get(number) || { action: "", name, isNew, out: [] };
}
function change(number, changes) {
  decisions.set(number, { ...decisionOf(number), ...changes });
  save();
}
function decide(number, action) {
  const { name, isNew, nearest } = review.proposals[number];
  const before = decisionOf(number);
  if (before.action === action) return change(number, { action: "" }); // pressed again
  let chosen = before.name;
  if (action === "same" && !identities.has(chosen)) chosen = nearest;
  if (action === "new" && identities.has(chosen)) chosen = isNew ? name : "";
  change(number, { action, name: chosen });
  if (action === "new" || action === "same") fields[number].focus();
}
function problem({ action, name }) { // why a decision cannot be saved
  if (action !== "same" && action !== "new") return "";
  if (!name.trim()) return "give a name";
  if (action === "same" && !identities.has(name.trim())) return "the gallery has no such identity";
  return action === "new" && identities.has(name.trim()) ? "the gallery has this identity" : "";
}

// The buttons of each proposal, and below each of its photos one that takes it out.
const fields = [], places = [];
for (const place of document.querySelectorAll("[data-proposal]")) {
  const number = Number(place.dataset.proposal);
  const proposal = review.proposals[number];
  const buttons = ACTIONS.map(([action, textContent]) => {
    const button = element("button", { type: "button", textContent, onclick: () => decide(number, action) });
    button.dataset.action = action;
    return button;
  });
  fields[number] = element("input", { autocomplete: "off", oninput: (event) => change(number, { name: event.target.value }) });
  fields[number].setAttribute("list", "identities");
  fields[number].setAttribute("aria-label", `Name of ${proposal.name}`);
  place.setAttribute("role", "group");
  place.setAttribute("aria-label", `Decision about ${proposal.name}`);
  place.append(...buttons, fields[number], element("span", { className: "decided" }));
  places[number] = place;
  const paths = new Map(proposal.photos);
  for (const cell of place.closest("[data-row]").querySelectorAll("button.plain[data-view]")) {
    const path = paths.get(Number(cell.dataset.view));
    const out = element("button", { type: "button", className: "drop", textContent: "✕", title: "Take out" });
    out.dataset.path = path;
    out.setAttribute("aria-label", `Take ${path} out`);
    out.addEventListener("click", () => {
      const before = decisionOf(number).out;
      change(number, { out: before.includes(path) ? before.filter((each) => each !== path) : [...before, path] });
    });
    cell.after(element("div", { className: "marks" }, out));
    if (/[\\/]/.test(path)) cell.nextSibling.after(element("span", { className: "file", textContent: path })); // names are shown
  }
}
function refresh() {
  const counts = { same: 0, new: 0, "not sure": 0 };
  let isWrong = false;
  for (const [number, place] of places.entries()) {
    const decision = decisionOf(number);
    for (const button of place.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.dataset.action === decision.action));
    }
    if (fields[number].value !== decision.name) fields[number].value = decision.name;
    const wrong = problem(decision);
    isWrong ||= Boolean(wrong);
    fields[number].setAttribute("aria-invalid", String(Boolean(wrong)));
    place.querySelector(".decided").textContent = wrong;
    const photos = review.proposals[number].photos.length;
    if (decision.action) counts[decision.action] += photos - (decision.action === "not sure" ? 0 : decision.out.length);
    if (decision.action && decision.action !== "not sure") counts["not sure"] += decision.out.length;
    for (const out of place.closest("[data-row]").querySelectorAll(".marks button")) {
      const isOut = decision.out.includes(out.dataset.path);
      out.setAttribute("aria-pressed", String(isOut));
      if (isOut) out.closest("li").dataset.decision = "drop";
      else delete out.closest("li").dataset.decision;
    }
  }
  const said = Object.entries(counts).filter(([, count]) => count).map(([action, count]) => `${count} ${action}`);
  byId("review-count").textContent = said.length ? "Photos: " + said.join(", ") : "No decisions yet";
  byId("review-export").disabled = isWrong || !said.length;
  byId("review-clear").disabled = !decisions.size;
}

// The file.
function csv() {
  const lines = [];
  for (const [number, { action, name, out }] of decisions) {
    if (!action) continue;
    for (const [, path] of review.proposals[number].photos) {
      const isUnsure = action === "not sure" || out.includes(path);
      lines.push([quoted(path), isUnsure ? "not sure" : action, isUnsure ? "" : quoted(name.trim())].join(","));
    }
  }
  return ["path,decision,identity", ...lines, ""].join("\n");
}
for (const [number, decision] of saved() || []) decisions.set(number, decision);
refresh();
