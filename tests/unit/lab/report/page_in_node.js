"use strict";

/* Runs a report's script in a document just large enough for it, uses every plot, and prints what came of it.
   node page_in_node.js FILE WIDTH, where FILE has {"data": the embedded JSON, "script": the page's script}. */

const fs = require("node:fs");
const { data, script } = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
const WIDTH = Number(process.argv[3]);

class Node_ {
  constructor(tag) {
    Object.assign(this, { tagName: tag.toUpperCase(), attributes: {}, children: [], listeners: {}, dataset: {}, style: {}, hidden: false, own: "" });
    Object.assign(this, { clientWidth: WIDTH, offsetWidth: 120, offsetHeight: 60 });
  }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  addEventListener(name, run) { (this.listeners[name] ||= []).push(run); }
  append(...nodes) { this.children.push(...nodes); }
  replaceChildren(...nodes) { this.children = nodes; }
  getBoundingClientRect() { return { left: 0, top: 0, width: WIDTH, height: 300 }; }
  focus() { document.activeElement = this; }
  fire(name, event) { for (const run of this.listeners[name] || []) run({ preventDefault() {}, currentTarget: this, target: this, ...event }); }
  get textContent() { return this.own + this.children.map((one) => (one instanceof Node_ ? one.textContent : String(one))).join(" "); }
  set textContent(text) { this.own = text; this.children = []; }
  all(wanted) {
    const found = this.children.filter((one) => one instanceof Node_).flatMap((one) => one.all(wanted));
    return wanted(this) ? [this, ...found] : found;
  }
}

const places = new Map();
globalThis.document = {
  createElement: (tag) => new Node_(tag), createElementNS: (_, tag) => new Node_(tag),
  getElementById: (id) => places.get(id) || places.set(id, new Node_("div")).get(id),
  querySelectorAll: () => [], documentElement: new Node_("html"), activeElement: null,
};
globalThis.ResizeObserver = class { observe() {} };
Object.assign(globalThis, { innerWidth: 1200, innerHeight: 800, addEventListener() {} });
document.getElementById("data").own = data;

new Function(script)();

const byTag = (root, tag) => root.all((one) => one.tagName === tag.toUpperCase());
const look = (id) => {
  const root = places.get(id);
  const numbers = root.all((one) => Object.values(one.attributes).some((value) => /NaN|Infinity|undefined/.test(value)));
  return { charts: byTag(root, "svg").filter((one) => one.attributes.role === "application").length, paths: byTag(root, "path").length, rects: byTag(root, "rect").length, broken: numbers.length, text: root.textContent };
};

/* By keyboard and by pointer, every chart of a plot. */
function use(id) {
  const said = [], hovered = [];
  for (const chart of byTag(places.get(id), "svg").filter((one) => one.attributes.role === "application")) {
    for (const key of ["ArrowRight", "ArrowRight", "End", "Home", "End"]) chart.fire("keydown", { key });
    said.push(places.get("spoken").textContent);
    for (const hit of chart.all((one) => one.attributes.class === "hit")) {
      for (let step = 0; step <= 20; step += 1) hit.fire("pointermove", { clientX: (WIDTH * step) / 20, clientY: 15 * step });
    }
    hovered.push(places.get("tip").textContent);
    chart.fire("keydown", { key: "Escape" });
  }
  return { said, hovered, hidden: places.get("tip").hidden };
}

/* Every entry of every control once. */
function choose(id) {
  let broken = 0, choices = 0;
  for (const select of byTag(places.get(`${id}-controls`), "select")) {
    for (const option of byTag(select, "option")) {
      select.fire("change", { target: { value: option.attributes.value } });
      choices += 1;
      broken += look(id).broken;
    }
  }
  return { choices, broken };
}

const plots = ["distribution-plot", "tradeoff-plot", "energy-plot", "timeline-plot"];
console.log(JSON.stringify(Object.fromEntries(plots.map((id) => [id, { ...look(id), ...use(id), chosen: choose(id) }]))));
