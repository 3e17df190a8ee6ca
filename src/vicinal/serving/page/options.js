// Number of neighbors, groups and filters: fields for the columns of the index, and the condition that they make.
import { byId, element } from "./elements.js";

const HIDDEN = ["id", "path"]; // columns with a value of its own for each image
const form = () => byId("options");
const name = (column) => "`" + column + "`"; // conditions take any name in backquotes

// Make the fields for the columns that /info names.
export function showOptions({ columns, limits, images }) {
  byId("k").max = Math.max(1, Math.min(limits?.max_k ?? 100, images || 1));
  byId("k").value = Math.min(12, byId("k").max);
  byId("k").defaultValue = byId("k").value;
  const usable = columns.filter((column) => !HIDDEN.includes(column.name) && !column.name.includes("`"));
  byId("group-by").replaceChildren(
    new Option("image", ""), ...usable.map((column) => new Option(column.name, column.name)));
  byId("filters").replaceChildren(...usable.map(field));
}

function field(column) {
  if (column.type === "number") return range(column);
  if (column.values?.length) return choices(column);
  return element("label", { className: "block" }, `${column.name} contains `,
    element("input", { type: "text", name: `contains ${column.name}`, autocomplete: "off" }));
}

function range({ name: column, values }) {
  const known = (values ?? []).filter(Number.isFinite);
  const [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : ["", ""];
  const bound = (kind, said, placeholder) => element("label", {}, `${said} `,
    element("input", { type: "number", name: `${kind} ${column}`, step: "any", placeholder: String(placeholder) }));
  return element("fieldset", { className: "range" }, element("legend", { textContent: column }),
    bound("min", "from", low), bound("max", "to", high));
}

function choices({ name: column, values }) {
  const boxes = values.filter((value) => value !== null).map((value) => element("label", {},
    element("input", { type: "checkbox", name: `is ${column}`, value: JSON.stringify(value) }), ` ${value}`));
  const said = element("span", { className: "chosen" });
  return element("details", { className: "choices" }, element("summary", {}, column, " ", said),
    element("fieldset", {}, element("legend", { className: "unseen", textContent: column }), ...boxes));
}

// What is chosen, for the history: pairs of names and values.
export const chosen = () => [...new FormData(form())];

export function choose(pairs) {
  form().reset();
  for (const [key, value] of pairs) {
    for (const input of form().elements) {
      if (input.name !== key) continue;
      if (input.type === "checkbox") input.checked ||= input.value === value;
      else input.value = value;
    }
  }
  sayChosen();
}

export function clearFilters() {
  const kept = chosen().filter(([key]) => key === "k" || key === "group_by");
  choose(kept);
}

// The settings of POST /search.
export function settings() {
  const fields = new FormData(form());
  const filter = condition(fields);
  const groupBy = fields.get("group_by");
  const parts = fields.get("parts") && { rerank: "local" };
  return { k: Number(fields.get("k")), ...(filter && { filter }), ...(groupBy && { group_by: groupBy }), ...parts };
}

function condition(fields) {
  const parts = [];
  for (const key of new Set(fields.keys())) {
    const [kind, column] = [key.slice(0, key.indexOf(" ")), key.slice(key.indexOf(" ") + 1)];
    const values = fields.getAll(key).filter((value) => value.trim() !== "");
    if (values.length && kind in CONDITIONS) parts.push(CONDITIONS[kind](name(column), values));
  }
  const own = fields.get("condition").trim();
  if (own) parts.push(parts.length ? `(${own})` : own);
  return parts.join(" and ");
}

const literal = (json) => ({ true: "True", false: "False" })[json] ?? json;
const CONDITIONS = {
  is: (column, values) => (values.length === 1
    ? `${column} == ${literal(values[0])}` : `${column} in [${values.map(literal).join(", ")}]`),
  min: (column, [value]) => `${column} >= ${value}`,
  max: (column, [value]) => `${column} <= ${value}`,
  contains: (column, [value]) => `${JSON.stringify(value)} in ${column}`,
};

// Show the chosen values beside each list, and beside the whole.
export function sayChosen() {
  for (const list of document.querySelectorAll(".choices")) {
    const values = [...list.querySelectorAll(":checked")].map((box) => JSON.parse(box.value));
    list.querySelector(".chosen").textContent = values.length ? values.join(", ") : "any";
  }
  const count = new Set(chosen().filter(([key, value]) => value.trim() && key !== "k").map(([key]) => key)).size;
  byId("options-said").textContent = count ? `${count} set` : "";
  byId("clear").hidden = count === 0;
}
