/* One chart: axes, layers, and a cursor for pointer and keyboard.

   spec = { label, height, x: {title, unit, log, domain}, y: {...}, layers, tip(cursor), stops(), mode, draw(frame) }
   A layer = { series, name, dash, shape: "line" | "step" | "area", points: [[x, y], ...], marks: [{x, y, xs, ys, status}] }
   The cursor is an x (mode "x"), a mark (mode "mark") or a row (mode "row"); stacked charts share it through `onCursor`. */

class Chart {
  constructor(container, make) {
    this.container = container;
    this.make = make;
    this.width = 0;
    new ResizeObserver(() => { if (container.clientWidth && container.clientWidth !== this.width) this.draw(); }).observe(container);
  }

  draw() {
    this.width = this.container.clientWidth;
    if (!this.width) return;
    const spec = this.spec = this.make();
    const narrow = this.width < 520;
    const pad = { left: narrow ? 46 : 58, right: 14, top: 24, bottom: spec.x.bare ? 8 : 42 };
    const height = spec.height || Math.round(Math.min(420, Math.max(260, this.width * 0.46)));
    const frame = this.frame = { left: pad.left, right: this.width - pad.right, top: pad.top, bottom: height - pad.bottom, width: this.width, height };
    this.x = makeScale(spec.x.domain, [frame.left, frame.right], spec.x.log);
    this.y = makeScale(spec.y.domain, [frame.bottom, frame.top], spec.y.log);
    this.overlay = svg("g", { "aria-hidden": "true" });
    const root = svg("svg", { viewBox: `0 0 ${this.width} ${height}`, role: "application", "aria-roledescription": "plot", "aria-label": spec.label, tabindex: 0 },
      this.axes(narrow), ...spec.layers.map((layer) => this.layer(layer)), spec.draw ? spec.draw(this) : null, this.overlay, this.hit());
    root.addEventListener("keydown", (event) => this.key(event));
    root.addEventListener("blur", () => this.leave());
    const focused = this.root && this.root === document.activeElement;
    this.container.replaceChildren(root);
    this.root = root;
    if (focused) root.focus();
  }

  axes(narrow) {
    const { frame, spec } = this;
    const across = axisTicks(this.x, spec.x.unit, narrow ? 4 : 8), up = axisTicks(this.y, spec.y.unit, spec.height ? 3 : 7);
    const parts = [];
    if (!spec.y.hidden) for (const tick of up.ticks) {
      const at = this.y(tick.at);
      parts.push(svg("line", { x1: frame.left, x2: frame.right, y1: at, y2: at, class: "grid" }),
        svg("text", { x: frame.left - 8, y: at + 4, "text-anchor": "end" }, tick.text));
    }
    for (const tick of across.ticks) {
      const at = this.x(tick.at);
      parts.push(svg("line", { x1: at, x2: at, y1: frame.bottom, y2: frame.bottom + (spec.x.bare ? 0 : 4), class: "axis" }));
      if (!spec.x.bare) parts.push(svg("text", { x: at, y: frame.bottom + 18, "text-anchor": "middle" }, tick.text));
    }
    parts.push(svg("line", { x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom, class: "axis" }));
    const named = (axis, unit) => (unit && !axis.title.endsWith(unit) ? `${axis.title} (${unit})` : axis.title);
    parts.push(svg("text", { x: 0, y: 12, class: "title" }, named(spec.y, up.name)));
    if (!spec.x.bare) parts.push(svg("text", { x: frame.right, y: frame.bottom + 36, "text-anchor": "end", class: "title" }, named(spec.x, across.name)));
    return svg("g", {}, ...parts);
  }

  layer(layer) {
    const group = svg("g", { class: `c${layer.series % 8}` });
    if (layer.points && layer.points.length) {
      if (layer.shape === "area") group.append(svg("path", { class: "area", d: this.path(layer, true) }));
      group.append(svg("path", { class: "line", d: this.path(layer, false), "stroke-dasharray": DASHES[(layer.dash || 0) % DASHES.length] }));
    }
    for (const mark of layer.marks || []) this.mark(group, layer, mark);
    return group;
  }

  path(layer, closed) {
    const corners = layer.points.map(([x, y]) => [this.x(x).toFixed(1), this.y(y).toFixed(1)]);
    const joint = layer.shape === "step" ? ([x, y]) => `H${x}V${y}` : ([x, y]) => `L${x},${y}`;
    const line = `M${corners[0]}${corners.slice(1).map(joint).join("")}`;
    return closed ? `${line}V${this.frame.bottom}H${corners[0][0]}Z` : line;
  }

  mark(group, layer, mark) {
    const x = this.x(mark.x), y = this.y(mark.y);
    if (mark.xs) group.append(svg("line", { class: "error", x1: this.x(mark.xs[0]), x2: this.x(mark.xs[1]), y1: y, y2: y }));
    if (mark.ys) group.append(svg("line", { class: "error", x1: x, x2: x, y1: this.y(mark.ys[0]), y2: this.y(mark.ys[1]) }));
    group.append(svg("path", { class: mark.status === "valid" ? "mark" : "mark hollow", d: markPath(layer.series, x, y, 5) }));
    if (mark.status === "invalid") group.append(svg("path", { class: "crossed", d: `M${x - 8},${y - 8}l16,16m0,-16l-16,16` }));
  }

  hit() {
    const { frame } = this;
    return svg("rect", {
      class: "hit", x: frame.left, y: frame.top, width: frame.right - frame.left, height: frame.bottom - frame.top,
      onpointermove: (event) => this.point(event), onpointerdown: (event) => this.point(event), onpointerleave: (event) => { if (event.pointerType !== "touch") this.leave(); },
    });
  }

  point(event) {
    const box = this.root.getBoundingClientRect();
    const scale = this.frame.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    this.show(this.spec.near(this, x, y), event.clientX, event.clientY);
  }

  key(event) {
    const stops = this.spec.stops(this);
    if (event.key === "Escape") return this.leave();
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
    if (move === undefined || !stops.length) return undefined;
    event.preventDefault();
    const next = this.stop === undefined ? (move === Infinity ? stops.length - 1 : 0) : this.stop + move;
    this.stop = Math.max(0, Math.min(stops.length - 1, next));
    const cursor = stops[this.stop];
    const box = this.root.getBoundingClientRect();
    const [x, y] = this.spec.where(this, cursor);
    const tip = this.show(cursor, box.left + x * box.width / this.frame.width, box.top + y * box.height / this.frame.height);
    if (tip) speak(tip);
    return undefined;
  }

  show(cursor, clientX, clientY) {
    if (cursor === null || cursor === undefined) { this.leave(); return null; }
    const { tip, parts } = this.spec.read(this, cursor);
    this.overlay.replaceChildren(...parts);
    showTip(tip, clientX, clientY);
    if (this.spec.onCursor) this.spec.onCursor(cursor);
    return tip;
  }

  leave() {
    this.stop = undefined;
    this.overlay.replaceChildren();
    hideTip();
    if (this.spec.onCursor) this.spec.onCursor(null);
  }

  /* Draws a dashed line at the cursor of a neighbouring chart. */
  follow(at) {
    this.overlay.replaceChildren(...(at === null ? [] : [this.cursorLine(at)]));
  }

  cursorLine(at) {
    return svg("line", { class: "cursor", x1: this.x(at), x2: this.x(at), y1: this.frame.top, y2: this.frame.bottom });
  }

  dot(series, x, y) {
    return svg("circle", { class: `dot c${series % 8}`, cx: this.x(x), cy: this.y(y), r: 4 });
  }
}

/* Reading by x: the cursor is a value on the x axis; each layer reports its value there. */
function readByX(steps, valueAt, title) {
  return {
    near: (chart, x) => chart.x.invert(Math.max(chart.frame.left, Math.min(chart.frame.right, x))),
    stops: (chart) => Array.from({ length: steps + 1 }, (_, step) => chart.x.invert(chart.frame.left + (step / steps) * (chart.frame.right - chart.frame.left))),
    where: (chart, at) => [chart.x(at), (chart.frame.top + chart.frame.bottom) / 2],
    read: (chart, at) => {
      const found = chart.spec.layers.map((layer) => ({ layer, value: valueAt(layer, at) })).filter((one) => one.value !== null);
      return {
        tip: { title: title(at), rows: found.map(({ layer, value }) => ({ series: layer.series, name: layer.name, value: layer.format(value) })) },
        parts: [chart.cursorLine(at), ...found.map(({ layer, value }) => chart.dot(layer.series, at, value))],
      };
    },
  };
}

/* Reading by mark: the cursor is the nearest mark. */
function readByMark(tipOf) {
  const marks = (chart) => chart.spec.layers.flatMap((layer) => layer.marks.map((mark) => ({ layer, mark })));
  const position = (chart, { mark }) => [chart.x(mark.x), chart.y(mark.y)];
  return {
    near: (chart, x, y) => {
      const distance = (one) => Math.hypot(position(chart, one)[0] - x, position(chart, one)[1] - y);
      const best = marks(chart).reduce((least, one) => (least === null || distance(one) < distance(least) ? one : least), null);
      return best && distance(best) < 60 ? best : null;
    },
    stops: marks,
    where: position,
    read: (chart, one) => ({ tip: tipOf(one), parts: [svg("path", { class: `line c${one.layer.series % 8}`, d: markPath(0, ...position(chart, one), 9) })] }),
  };
}
