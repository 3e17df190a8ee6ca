// The page of the service: a picture is chosen, its neighbors are shown, and each of them can be searched on with.
import { byId, counted, element } from "./elements.js";
import * as matches from "./matches.js";
import * as options from "./options.js";
import * as parts from "./parts.js";
import { pictureIn, readPicture } from "./picture.js";
import { Region } from "./region.js";
import * as server from "./server.js";
import { Visits } from "./visits.js";

const LARGE = 512; // pixels, of the image of the index that is searched with
const NOTHING = "Give a picture to see its nearest neighbors in the index.";
const visits = new Visits(restore);
const region = new Region(searchRegion);
let running = null; // the search that is waited for
let again = () => {}; // repeats the failed request
let proceed = () => {}; // goes on with the token

async function start() {
  let index;
  say("Asking the server what it has …");
  try {
    index = await server.info();
  } catch (error) {
    fail(error, start);
    return;
  }
  describe(index);
  options.showOptions(index);
  parts.offer(index.local);
  options.sayChosen();
  say(NOTHING);
  const linked = /^#item-(\d+)$/.exec(window.location.hash);
  window.history.replaceState(null, "", window.location.pathname);
  if (linked) searchItem(linked[1]);
}

function describe({ name, images, model, calibration, can_embed: canEmbed, version }) {
  byId("title").textContent = name ? `Search ${name}` : "Search by picture";
  document.title = byId("title").textContent;
  const parts = [counted(images, "image"), model?.name, calibration ? "calibrated" : null];
  byId("summary").textContent = parts.filter(Boolean).join(" · ");
  byId("version").textContent = version ? ` ${version}` : "";
  byId("pick").disabled = byId("photograph").disabled = !canEmbed;
  if (!canEmbed) byId("drop-help").textContent = "This server has no model: it searches with images of the index alone.";
}

// Messages and errors.
function say(text) {
  byId("status").textContent = text;
}
function fail(error, repeat) {
  again = repeat;
  matches.forget();
  say("");
  byId("error").hidden = false;
  byId("error-title").textContent = error.title ?? "Something went wrong.";
  byId("error-detail").textContent = error.detail ?? error.message;
  if (error.status === 401) askToken(repeat);
}
function setBusy(isBusy) {
  byId("results").setAttribute("aria-busy", String(isBusy));
  byId("busy").hidden = !isBusy;
  if (isBusy) byId("error").hidden = true;
}

// Searches.
async function searchFile(file) {
  if (byId("pick").disabled) return;
  if (file.type && !file.type.startsWith("image/")) {
    fail(new server.ServerError(0, `${file.name} is ${file.type}.`, "That is not a picture."), () => {});
    return;
  }
  try {
    const query = await readPicture(file);
    visits.add({ query: { ...query, box: null, title: `Picture ${query.name}` } });
    open(visits.current);
  } catch (error) {
    fail(error, () => searchFile(file));
  }
}
function searchRegion() {
  const { query } = visits.current;
  const [left, top, width, height] = region.box;
  const title = `${query.name}, region ${left}, ${top}, ${width}, ${height}`;
  visits.add({ query: { ...query, box: region.box, title, thumbnail: region.thumbnail() } });
  open(visits.current);
}
async function searchItem(id) {
  setBusy(true);
  try {
    const [item, url] = await Promise.all([server.item(id), server.picture(id, LARGE).catch(() => null)]);
    const title = `Image ${id} of the index`;
    visits.add({ query: { id, title, url, width: null, height: null, box: null, item } });
    open(visits.current);
  } catch (error) {
    setBusy(false);
    fail(error, () => searchItem(id));
  }
}

function open(visit) {
  showQuery(visit.query);
  run(visit, { isNew: true });
}

async function run(visit, { isNew }) {
  if (!byId("options").reportValidity()) return;
  const { signal } = begin();
  visit.chosen = options.chosen();
  say("Searching …");
  const onWait = (seconds) => say(`The server is busy; the next try is in ${counted(Math.ceil(seconds), "second")}.`);
  try {
    visit.answer = await server.search(visit.query, options.settings(), { signal, onWait });
  } catch (error) {
    if (error.name === "AbortError") return;
    setBusy(false);
    visit.answer = null;
    fail(error, () => run(visit, { isNew }));
    return;
  }
  setBusy(false);
  showAnswer(visit, { isNew, signal });
}

// Cancel the pending search; the new one takes its place.
function begin() {
  running?.abort();
  running = new AbortController();
  setBusy(true);
  return running;
}

// What is shown.
function showAnswer({ answer, query }, { isNew, signal }) {
  const hadFocus = byId("matches").contains(document.activeElement) || document.activeElement === document.body;
  matches.show(answer, query, (match) => searchItem(match.id));
  say(matches.counting(answer));
  if (isNew) goToResults(hadFocus);
  matches.loadPictures({ signal }).catch(() => {}); // another search took over
}
function goToResults(isFocused) {
  const results = byId("results");
  if (isFocused) results.focus({ preventScroll: true });
  const { top } = results.getBoundingClientRect();
  if (top < 0 || top > window.innerHeight / 2) results.scrollIntoView({ block: "start" });
}
function showQuery({ name, url, width, height, box, item, id }) {
  byId("asked").hidden = false;
  shrinkDrop(true);
  byId("stage").hidden = url === null;
  byId("picture").src = url ?? "data:,";
  byId("picture").classList.toggle("tiny", width !== null && Math.max(width, height) < 64);
  byId("asked-note").textContent = noteOn({ name, url, width, height, id });
  region.show(width === null ? null : { width, height }, box);
  const columns = item === undefined ? [] : Object.entries({ label: item.label, ...item.columns }).filter(([, value]) => value !== null);
  byId("asked-columns").hidden = !columns.length;
  byId("asked-columns").replaceChildren(...columns.map(([key, value]) =>
    element("div", {}, element("dt", { textContent: key }), element("dd", { textContent: String(value), dir: "auto" }))));
}
function shrinkDrop(isSmall) {
  byId("drop").classList.toggle("small", isSmall);
  if (byId("pick").disabled) return;
  byId("drop-help").hidden = isSmall;
  byId("drop-other").hidden = !isSmall;
}
function noteOn({ name, url, width, height, id }) {
  if (id !== undefined) return url === null ? `Image ${id} of the index, which has no picture.` : `Image ${id} of the index.`;
  return url === null ? `${name}: this browser cannot show it; it is sent as it is.` : `${name}, ${width} × ${height} pixels`;
}

// Back, forward, or a query of this visit.
function restore(visit) {
  const { signal } = begin();
  setBusy(false);
  if (visit === null) {
    byId("asked").hidden = true;
    shrinkDrop(false);
    matches.forget();
    say(NOTHING);
    return;
  }
  options.choose(visit.chosen ?? []);
  showQuery(visit.query);
  if (visit.answer) showAnswer(visit, { isNew: true, signal });
  else run(visit, { isNew: true });
}

// Ways to give a picture.
for (const [button, input] of [["pick", "file"], ["photograph", "camera"]]) {
  byId(button).addEventListener("click", () => byId(input).click());
  byId(input).addEventListener("change", () => {
    const [file] = byId(input).files;
    if (file) searchFile(file);
    byId(input).value = ""; // so that the same one can be picked again
  });
}
document.addEventListener("paste", (event) => {
  const file = pictureIn(event.clipboardData);
  if (file === null) return;
  event.preventDefault();
  searchFile(file);
});
const setDragging = (isDragging) => document.body.classList.toggle("dragging", isDragging);
document.addEventListener("dragover", (event) => {
  if (!event.dataTransfer.types.includes("Files")) return;
  event.preventDefault();
  setDragging(true);
});
document.addEventListener("dragleave", (event) => {
  if (event.relatedTarget === null) setDragging(false);
});
document.addEventListener("drop", (event) => {
  setDragging(false);
  const file = pictureIn(event.dataTransfer);
  if (file === null) return;
  event.preventDefault();
  searchFile(file);
});
byId("by-id").addEventListener("submit", (event) => {
  event.preventDefault();
  searchItem(byId("item").valueAsNumber);
});

// The token that the server asks for, typed once per tab; `isRefused`: the one that was sent is wrong.
function askToken(onToken, isRefused = server.token.get() !== null) {
  proceed = onToken;
  byId("token-open").hidden = false;
  byId("token-said").textContent = isRefused
    ? "The server refused this token." : "This server asks for a token. It is kept until this tab is closed.";
  byId("token-value").value = "";
  if (!byId("token").open) byId("token").showModal();
}

byId("token-form").addEventListener("submit", () => {
  server.token.set(byId("token-value").value.trim());
  proceed();
});
byId("token-cancel").addEventListener("click", () => byId("token").close());
byId("token-open").addEventListener("click", () => askToken(proceed, false));

// A change of the options repeats the search.
function searchAgain() {
  options.sayChosen();
  if (visits.current !== null) run(visits.current, { isNew: false });
}
byId("options").addEventListener("change", searchAgain);
byId("options").addEventListener("submit", (event) => event.preventDefault());
byId("clear").addEventListener("click", () => {
  options.clearFilters();
  searchAgain();
  byId("condition").focus(); // the button is gone
});
byId("again").addEventListener("click", () => {
  byId("error").hidden = true;
  again();
});

// On a phone the options are folded.
const isNarrow = window.matchMedia("(max-width: 54rem)");
const unfold = () => { byId("options-fold").open = !isNarrow.matches; };
isNarrow.addEventListener("change", unfold);
unfold();
start();
