// Decisions of a reviewer: the bar that counts them, the file that it saves, and what the browser remembers of them.
function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}
const quoted = (value) => `"${String(value).replaceAll('"', '""')}"`;

// Add the bar below the page. `key` names what the browser remembers; `question` is asked before all is forgotten, `csv`
// makes the file, and `refresh` shows the decisions, a Map.
function reviewBar(decisions, { key, question, csv, refresh }) {
  function save() {
    try {
      window.localStorage.setItem(key, JSON.stringify([...decisions]));
    } catch { /* files opened from disk may have no storage */ }
    refresh();
  }
  function saved() {
    try {
      const found = JSON.parse(window.localStorage.getItem(key));
      if (Array.isArray(found)) return found.filter(Array.isArray);
    } catch { /* nothing was saved */ }
    return null;
  }
  function clearAll() {
    if (!window.confirm(question())) return;
    decisions.clear();
    save();
  }
  function exportDecisions() {
    const url = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
    element("a", { href: url, download: "decisions.csv" }).click();
    window.setTimeout(() => URL.revokeObjectURL(url), 1000);
  }
  const bar = element("div", { id: "review-bar" },
    element("span", { id: "review-count" }),
    element("div", {},
      element("button", { type: "button", id: "review-clear", textContent: "Clear all", onclick: clearAll }),
      element("button", { type: "button", id: "review-export", textContent: "Save decisions.csv", onclick: exportDecisions })));
  bar.setAttribute("role", "region");
  bar.setAttribute("aria-label", "Decisions");
  bar.firstChild.setAttribute("aria-live", "polite");
  document.querySelector("footer").before(bar);
  return { save, saved };
}
