// The neighbors that were found: picture, label, score and probability of each, and the decision.
import { counted, element, byId } from "./elements.js";
import * as parts from "./parts.js";
import { picture } from "./server.js";

const MAX_COLUMNS = 2; // below a picture
const SIZE = 256; // pixels
const THREADS = 6;
const HIDDEN = ["id", "path", "label", "split", "box"];
const TINY = 64; // pixels; smaller pictures are enlarged without blur
function percent(probability) {
  if (probability >= 0.995) return "over 99%";
  return probability < 0.005 ? "below 1%" : `${Math.round(100 * probability)}%`;
}

// What an image of the index is called.
export const nameOf = ({ id, label, columns }) => String(label ?? columns?.path?.split("/").at(-1) ?? `image ${id}`);

// Match or no match, in words.
export function decision({ matches, is_match: isMatch, label }) {
  if (isMatch === null || isMatch === undefined) return "The index is not calibrated, so nothing says whether this is a match.";
  const [best] = matches;
  const sure = typeof best?.probability === "number" ? `, probability ${percent(best.probability)}` : "";
  if (!isMatch) return `No match${sure && ` (the nearest is right with a${sure.slice(1)})`}`;
  return `Match: ${label ?? nameOf(best)}${sure}`;
}

export function counting({ matches }) {
  if (!matches.length) return "Nothing was found.";
  const found = `${counted(matches.length, "neighbor")} found.`;
  return matches.every(({ patches }) => patches?.length === 0) ? `${found} None has a part in common with the picture.` : found;
}

export function show(answer, query, onChoose) {
  const list = byId("matches");
  forget();
  list.replaceChildren(...answer.matches.map((match, at) => cell(match, query, at === 0 ? answer.is_match : null, onChoose)));
  byId("go-on").hidden = !answer.matches.length;
  byId("decision").hidden = !answer.matches.length;
  byId("decision").textContent = decision(answer);
  byId("decision").className = `decision ${{ true: "match", false: "mismatch" }[answer.is_match] ?? "note"}`;
}

export function forget() {
  for (const image of byId("matches").querySelectorAll("img[src]")) URL.revokeObjectURL(image.src);
  byId("matches").replaceChildren();
  for (const id of ["go-on", "decision"]) byId(id).hidden = true;
}

function cell(match, query, isMatch, onChoose) {
  const kind = { true: " match", false: " mismatch" }[isMatch] ?? "";
  const lines = [
    element("strong", { className: "name", textContent: nameOf(match), dir: "auto" }),
    element("span", { className: "score", textContent: `score ${match.score.toFixed(3)}` }),
  ];
  if (typeof match.probability === "number") {
    lines.push(element("span", { className: "label", textContent: `probability ${percent(match.probability)}` }));
  }
  for (const [name, value] of further(match).slice(0, MAX_COLUMNS)) {
    lines.push(element("span", { className: "label", textContent: `${name} ${value}`, dir: "auto" }));
  }
  const button = element("button", { type: "button", className: "cell" + kind },
    element("span", { className: "picture" }, element("img", { alt: "" })), ...lines);
  button.dataset.id = match.id;
  button.addEventListener("click", () => onChoose(match));
  if (!match.patches) return element("li", {}, button);
  return element("li", {}, button, parts.button(match.patches, query, () => button.querySelector("img")?.src));
}

export const further = ({ columns }) =>
  Object.entries(columns ?? {}).filter(([name, value]) => !HIDDEN.includes(name) && value !== null && value !== "");

// Load the pictures in their order, a few at a time.
export async function loadPictures(options) {
  const waiting = [...byId("matches").querySelectorAll(".cell")];
  const load = async () => {
    for (let one = waiting.shift(); one; one = waiting.shift()) await fill(one, options);
  };
  await Promise.all(Array.from({ length: THREADS }, load));
}

async function fill(one, options) {
  const image = one.querySelector("img");
  image.addEventListener("load", () => image.classList.toggle("tiny", Math.max(image.naturalWidth, image.naturalHeight) < TINY));
  try {
    image.src = await picture(one.dataset.id, SIZE, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    image.replaceWith(element("span", { className: "nothing", textContent: "no picture" }));
  }
}
