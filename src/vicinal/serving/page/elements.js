// Small help with elements.
export const byId = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

export const counted = (count, name) => `${count.toLocaleString("en")} ${name}${count === 1 ? "" : "s"}`;
