// Elements built in code: data only ever becomes text.
const sprite = document.querySelector(".brand use").getAttribute("href").split("#")[0];
const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; strings become text nodes. */
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export function svg(tag, attributes = {}) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

export function icon(name) {
  const node = svg("svg", { class: "i", "aria-hidden": "true" });
  node.append(svg("use", { href: `${sprite}#${name}` }));
  return node;
}

/** Icon shape, word and colour, as the templates' badge. */
export function badge(state, word, glyph = "", chip = false) {
  const mark = state === "live" && (!glyph || glyph === "live") ? make("span", { class: "pulse", "aria-hidden": "true" }) : icon(glyph || state || "info");
  return make("span", { class: `badge ${chip ? "chip " : ""}${state}` }, mark, word);
}

/** Change text only where it differs: screen readers and selections stay undisturbed. */
export function say(node, text) {
  if (node && node.textContent !== text) node.textContent = text;
}

/** The JSON block of this id. */
export const dataOf = (id) => JSON.parse(document.getElementById(id).textContent);
