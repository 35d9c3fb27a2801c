"use strict";

/* Elements, tooltip and screen reader output. Text is inserted as text, never as markup. */

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children) if (child !== null) node.append(child);
  return node;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);

function showTip(tip, x, y) {
  const box = byId("tip");
  const rows = tip.rows.map((row) => el("div", {},
    row.series === undefined ? null : el("span", { class: `swatch c${row.series % 8}` }),
    el("span", {}, row.name), el("span", { class: "value" }, row.value)));
  box.replaceChildren(el("b", {}, tip.title), ...rows);
  box.hidden = false;
  const gap = 14, width = box.offsetWidth, height = box.offsetHeight;
  const right = x + gap + width <= innerWidth, beside = right || x - gap - width >= 0;
  const left = right ? x + gap : beside ? x - gap - width : (innerWidth - width) / 2;
  const above = !beside && y - 2 * gap - height >= 0; // on a narrow screen: not under the finger
  const top = above ? y - 2 * gap - height : Math.min(y + gap, innerHeight - height - 4);
  box.style.left = `${Math.max(4, left)}px`;
  box.style.top = `${Math.max(4, top)}px`;
}

function hideTip() { byId("tip").hidden = true; }

function speak(tip) {
  byId("spoken").textContent = `${tip.title}. ${tip.rows.map((row) => `${row.name} ${row.value}`).join(". ")}`;
}

function choice(title, options, onchange, chosen) {
  const list = options.map(([value, name]) => el("option", { value, selected: value === chosen }, name));
  return el("label", {}, title, el("select", { onchange: (event) => onchange(event.target.value) }, ...list));
}

function legend(entries, onchange) {
  return el("div", { class: "legend", role: "group", "aria-label": "Show or hide" }, ...entries.map((entry) => el("button", {
    type: "button", "aria-pressed": String(!entry.hidden),
    onclick: (event) => {
      entry.hidden = !entry.hidden;
      event.currentTarget.setAttribute("aria-pressed", String(!entry.hidden));
      onchange();
    },
  }, sample(entry), entry.name)));
}

function sample(entry) {
  return svg("svg", { width: 26, height: 12, class: `sample c${entry.series % 8}`, "aria-hidden": "true" },
    entry.dash === undefined ? null : svg("line", { x1: 0, x2: 26, y1: 6, y2: 6, class: "line", "stroke-dasharray": DASHES[entry.dash % DASHES.length] }),
    entry.dash === undefined || entry.marked ? svg("path", { d: markPath(entry.series, 13, 6, 4.5), class: "mark" }) : null);
}
