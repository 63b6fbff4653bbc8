// Describes the page and changes only what differs: focus, scrolling and the reader's selection
// stay where they are while figures change twice a second.
// Everything becomes text or an attribute, never markup: names come from users and may hold anything.

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = new Set(["svg", "g", "path", "rect", "line", "circle", "polyline", "polygon", "text",
  "tspan", "title", "defs", "pattern", "marker"]);

/** A description of an element. Children: descriptions, strings, numbers; null and false are left out. */
export function h(tag, properties, ...children) {
  const { key = null, ...rest } = properties ?? {};
  const shown = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  return { tag, key, properties: rest, children: shown };
}

/** Make the content of `parent` match the description. */
export function show(parent, ...children) {
  showChildren(parent, children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

function showChildren(parent, wanted) {
  const keyed = new Map();
  for (const node of parent.childNodes) if (node.described?.key != null) keyed.set(node.described.key, node);
  let place = parent.firstChild;
  for (const description of wanted) {
    let node = place;
    if (description.key != null) node = keyed.get(description.key) ?? null;
    else if (node?.described?.key != null) node = null;
    if (node === null || !fits(node, description)) node = made(description, parent);
    if (node !== place) parent.insertBefore(node, place);
    else place = place.nextSibling;
    fill(node, description);
  }
  while (place !== null) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

function fits(node, description) {
  if (typeof description !== "object") return node.nodeType === Node.TEXT_NODE;
  return node.described?.tag === description.tag && node.described.key === description.key;
}

function made(description, parent) {
  if (typeof description !== "object") return document.createTextNode("");
  const drawn = SHAPES.has(description.tag) && (description.tag !== "title" || parent.namespaceURI === SVG);
  const node = drawn ? document.createElementNS(SVG, description.tag) : document.createElement(description.tag);
  node.described = { tag: description.tag, key: description.key, properties: {} };
  return node;
}

function fill(node, description) {
  if (typeof description !== "object") {
    const text = String(description);
    if (node.data !== text) node.data = text;
    return;
  }
  const before = node.described.properties;
  const after = description.properties;
  for (const name of Object.keys(before)) if (!(name in after)) set(node, name, null, before[name]);
  for (const [name, value] of Object.entries(after)) {
    if (before[name] !== value) set(node, name, value, before[name]);
  }
  node.described.properties = after;
  showChildren(node, description.children);
}

function set(node, name, value, before) {
  if (name.startsWith("on")) node[name] = value;
  else if (name === "style") {
    // Through the object model, which is allowed where inline styles are forbidden.
    for (const rule of Object.keys(before ?? {})) if (!(rule in (value ?? {}))) node.style.removeProperty(rule);
    for (const [rule, text] of Object.entries(value ?? {})) {
      if (before?.[rule] !== text) node.style.setProperty(rule, text);
    }
  } else if (name === "value" || name === "checked" || name === "open") {
    if (node[name] !== value) node[name] = value ?? "";
  } else if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : String(value));
}
