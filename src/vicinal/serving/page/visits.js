// The queries of this visit, as pictures to go back to, also by the browser's own Back.
import { byId, element } from "./elements.js";

const MAX_VISITS = 30;

export class Visits {
  // `onShow` is called with a query to show it again.
  constructor(onShow) {
    this.all = [];
    this.next = 0;
    this.current = null;
    this.onShow = onShow;
    window.addEventListener("popstate", (event) => this.go(this.all.find(({ key }) => key === event.state?.key) ?? null));
  }

  // Go on with a new query.
  add(visit) {
    visit.key = `${Date.now()}-${this.next++}`; // not that of an earlier load of this page
    this.all.push(visit);
    for (const old of this.all.splice(0, this.all.length - MAX_VISITS)) {
      if (old.query.url && !this.all.some(({ query }) => query.url === old.query.url)) URL.revokeObjectURL(old.query.url);
    }
    this.current = visit;
    const address = visit.query.id === undefined ? window.location.pathname : `#item-${visit.query.id}`;
    window.history.pushState({ key: visit.key }, "", address);
    this.draw();
  }

  // Show an earlier query, or the start; the history of the browser does not change.
  go(visit) {
    this.current = visit;
    this.draw();
    this.onShow(visit);
  }

  draw() {
    byId("visits-section").hidden = this.all.length < 2;
    byId("visits").replaceChildren(...this.all.map((visit) => this.button(visit)));
    const current = byId("visits").querySelector("[aria-current]");
    if (current !== null) byId("visits").scrollLeft = current.offsetLeft - byId("visits").clientWidth / 2;
  }

  button(visit) {
    const { query } = visit;
    const picture = query.url ? element("img", { src: query.thumbnail ?? query.url, alt: "" }) : element("span", { className: "nothing", textContent: "no picture" });
    const button = element("button", { type: "button", title: query.title }, picture,
      element("span", { className: "unseen", textContent: query.title }));
    if (visit === this.current) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => {
      if (visit === this.current) return;
      window.history.pushState({ key: visit.key }, "", query.id === undefined ? window.location.pathname : `#item-${query.id}`);
      this.go(visit);
      byId("visits").querySelector("[aria-current]")?.focus();
    });
    return element("li", {}, button);
  }
}
