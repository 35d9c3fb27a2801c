/* Throughput against latency, and energy against load: one mark per point. */

function tradeoffPlot(data) {
  pointPlot(data, {
    name: "tradeoff-plot", across: data.throughputs.map((key) => [key, data.metrics[key].title]), up: data.latencies, upTitle: "Latency",
    none: "These runs have no throughput with a latency.",
  });
}

function energyPlot(data) {
  const units = new Set(data.points.map((point) => point.unit));
  const asked = units.size === 1 && !units.has("") ? [["asked", `Load: ${[...units][0]}`]] : [];
  pointPlot(data, {
    name: "energy-plot", across: [...asked, ...data.throughputs.map((key) => [key, data.metrics[key].title])], up: data.energies, upTitle: "Energy",
    none: "No energy could be read in these runs; see “Missing measures” for the reason.",
  });
}

function pointPlot(data, plan) {
  const root = byId(plan.name), controls = byId(`${plan.name}-controls`);
  if (!plan.up.length || !plan.across.length) {
    byId(`${plan.name}-caption`).hidden = true;
    return root.replaceChildren(el("p", { class: "note" }, plan.none));
  }
  const state = { x: plan.across[0][0], y: plan.up[0], axis: "linear" };
  const entries = data.series.map((name, series) => ({ name, series, dash: series, marked: true, hidden: false }));
  const canvas = el("div");
  const chart = new Chart(canvas, () => pointSpec(data, plan, state, entries));
  const set = (name) => (value) => { state[name] = value; chart.draw(); };
  controls.append(
    choice(plan.upTitle, plan.up.map((key) => [key, data.metrics[key].title]), set("y"), state.y),
    choice("Against", plan.across, set("x"), state.x),
    choice("Axis", [["linear", "linear"], ["log", "logarithmic"]], set("axis"), state.axis),
  );
  root.replaceChildren(legend(entries, () => chart.draw()), canvas);
  chart.draw();
  return undefined;
}

const statOf = (point, key) => (key === "asked" ? (point.asked === null ? null : [point.asked, null, null]) : point.stats[key] || null);
/* These metrics cannot be negative, even if the interval is. */
const barOf = ([, low, high]) => (low === null || high === null ? null : [Math.max(0, low), high]);

function pointSpec(data, plan, state, entries) {
  const log = state.axis === "log";
  const layers = entries.filter((entry) => !entry.hidden).map((entry) => {
    const marks = data.points.filter((point) => point.series === entry.series).map((point) => markOf(point, state)).filter(Boolean);
    return { series: entry.series, dash: entry.dash, name: entry.name, marks: log ? marks.map(onLog) : marks, points: lines(marks) };
  });
  const all = layers.flatMap((layer) => layer.marks);
  const x = state.x === "asked" ? { title: plan.across[0][1], unit: "" } : data.metrics[state.x], y = data.metrics[state.y];
  return {
    label: `${y.title} against ${x.title}, ${all.length} points. Use the arrow keys to step through them.`,
    x: { title: x.title, unit: x.unit, log, domain: extent(all.flatMap((mark) => [mark.x, ...(mark.xs || [])]), { zero: true, log }) },
    y: { title: y.title, unit: y.unit, log, domain: extent(all.flatMap((mark) => [mark.y, ...(mark.ys || [])]), { zero: true, log }) },
    layers,
    ...readByMark(({ layer, mark }) => ({
      title: `${layer.name} · ${mark.point.load}`,
      rows: [
        { name: y.title, value: interval(statOf(mark.point, state.y), y.unit) },
        { name: x.title, value: interval(statOf(mark.point, state.x), x.unit) },
        { name: "Verdict", value: `${mark.point.status}, ${mark.point.note}` },
      ],
    })),
  };
}

/* A logarithmic axis cannot show 0: cut the interval at a tenth of the mean. */
function onLog(mark) {
  const cut = (bar, mean) => bar && [Math.max(bar[0], mean / 10), bar[1]];
  return { ...mark, xs: cut(mark.xs, mark.x), ys: cut(mark.ys, mark.y) };
}

function markOf(point, state) {
  const x = statOf(point, state.x), y = statOf(point, state.y);
  if (!x || !y) return null;
  return { point, x: x[0], y: y[0], xs: barOf(x), ys: barOf(y), status: point.status };
}

/* Points are in load order; a line needs a single kind of load. */
function lines(marks) {
  const joined = marks.filter((mark) => mark.point.asked !== null);
  const oneKind = new Set(joined.map((mark) => mark.point.unit)).size === 1;
  return oneKind && joined.length > 1 ? joined.map((mark) => [mark.x, mark.y]) : [];
}
