// Requests to the server: with the token, again while it is busy, and errors as its problem details say them.
const MAX_TRIES = 6;
const MAX_WAIT = 30; // seconds
const TOKEN = "vicinal-token"; // in the storage of this tab

const TITLES = {
  0: "The server cannot be reached.", 401: "The server asks for a token.", 404: "Not found.",
  413: "The picture is too large.", 415: "The picture cannot be read.", 429: "The server is busy.",
  503: "The server is busy.", 504: "The search took too long.",
};

export class ServerError extends Error {
  constructor(status, detail, title = TITLES[status] ?? (status < 500 ? "This cannot be searched." : "The server has failed.")) {
    super(detail);
    Object.assign(this, { status, title, detail });
  }
}

export const token = {
  get: () => window.sessionStorage.getItem(TOKEN),
  set: (value) => window.sessionStorage.setItem(TOKEN, value),
};

// Ask for something; `onWait` is told the seconds until the next try.
export async function request(path, { signal, onWait, headers, ...options } = {}) {
  for (let tries = 1; ; tries += 1) {
    const response = await send(path, { signal, headers: { ...headers, ...authorization() }, ...options });
    if (response.ok) return response;
    const seconds = secondsToWait(response);
    if (seconds === null || tries === MAX_TRIES) throw await problem(response);
    onWait?.(seconds);
    await sleep(seconds, signal);
  }
}

function authorization() {
  return token.get() === null ? {} : { Authorization: "Bearer " + token.get() };
}

async function send(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "It may have stopped, or the network is down.");
  }
}

function secondsToWait({ status, headers }) {
  if (status !== 429 && status !== 503) return null;
  const seconds = Number(headers.get("Retry-After") ?? 1);
  return seconds >= 0 && seconds <= MAX_WAIT ? Math.max(seconds, 0.1) : null;
}

async function problem(response) {
  const said = await response.json().catch(() => ({}));
  return new ServerError(response.status, said.detail || `Error ${response.status}`);
}

function sleep(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}

export const info = async () => (await request("info")).json();
export const item = async (id, options) => (await request(`items/${id}`, options)).json();

// A picture of the index as the address of a blob: an image element cannot send the token itself.
export async function picture(id, size, options) {
  const response = await request(`items/${id}/image?size=${size}`, options);
  return URL.createObjectURL(await response.blob());
}

// Search by a picture (multipart) or by an image of the index (JSON); see POST /search.
export async function search(query, settings, options) {
  const fields = { ...settings, ...(query.box && { box: query.box }) };
  return (await request("search", { method: "POST", ...body(query, fields), ...options })).json();
}

function body({ blob, name, id }, fields) {
  if (blob === undefined) {
    return { body: JSON.stringify({ id, exclude_id: id, ...fields }), headers: { "Content-Type": "application/json" } };
  }
  const form = new FormData();
  form.append("image", blob, name);
  for (const [key, value] of Object.entries(fields)) {
    form.append(key, typeof value === "string" ? value : JSON.stringify(value));
  }
  return { body: form };
}
