"use strict";
const root = document.documentElement;
const byId = (id) => document.getElementById(id);

// Theme: the system's, light or dark.
const themes = { system: "as the system", light: "light", dark: "dark" };
const redraws = []; // functions that redraw canvases in the colors of the theme
const systemIsDark = window.matchMedia("(prefers-color-scheme: dark)");
let theme = "system";
let printing = false;
const isDark = () => !printing && (theme === "dark" || (theme === "system" && systemIsDark.matches));
const redraw = () => redraws.forEach((each) => each());
function setTheme(name) {
  theme = Object.hasOwn(themes, name) ? name : "system";
  if (theme === "system") delete root.dataset.theme;
  else root.dataset.theme = theme;
  byId("theme-name").textContent = "Colors: " + themes[theme];
  redraw();
}
function stored(name) { // files opened from disk may have no storage
  try {
    if (name !== undefined) window.localStorage.setItem("vicinal-theme", name);
    return window.localStorage.getItem("vicinal-theme");
  } catch {
    return null;
  }
}
byId("theme").hidden = false;
byId("theme").addEventListener("click", () => {
  const names = Object.keys(themes);
  setTheme(names[(names.indexOf(theme) + 1) % names.length]);
  stored(theme);
});
systemIsDark.addEventListener("change", redraw);
for (const [event, value] of [["beforeprint", true], ["afterprint", false]]) {
  window.addEventListener(event, () => {
    printing = value;
    redraw();
  });
}
setTheme(stored() || "system");
