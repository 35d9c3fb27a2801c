/* Latency distributions: cumulative curves or histograms of the chosen loads. */

function distributionPlot(data) {
  const root = byId("distribution-plot"), controls = byId("distribution-plot-controls");
  const kinds = Object.keys(data.distributions).filter((key) => data.points.some((point) => point.curves[key]));
  if (!kinds.length) return root.replaceChildren(el("p", { class: "note" }, "No request in these runs was answered."));
  const loads = [...new Set(data.points.map((point) => point.load))];
  const state = { kind: kinds[0], view: "cumulative", load: data.points.length > 8 ? loads[loads.length - 1] : "", axis: "log" };
  const entries = data.points.map((point) => ({
    point, series: point.series, hidden: false,
    name: `${data.series[point.series]} · ${point.load}${point.status === "valid" ? "" : ` (${point.status})`}`,
  }));
  const canvas = el("div"), keys = el("div");
  const chart = new Chart(canvas, () => distributionSpec(data, state, entries));
  const redraw = () => {
    for (const entry of entries) entry.dash = state.load || loads.length === 1 ? entry.series : loads.indexOf(entry.point.load);
    keys.replaceChildren(legend(entries.filter((entry) => inLoad(entry, state)), () => chart.draw()));
    chart.draw();
  };
  const set = (name) => (value) => { state[name] = value; redraw(); };
  controls.append(
    choice("Latency", kinds.map((key) => [key, data.distributions[key]]), set("kind"), state.kind),
    choice("View", [["cumulative", "cumulative"], ["tail", "tail, 1 − share"], ["histogram", "histogram"]], set("view"), state.view),
    choice("Axis", [["log", "logarithmic"], ["linear", "linear"]], set("axis"), state.axis),
  );
  if (loads.length > 1) controls.append(choice("Load", [["", "all"], ...loads.map((load) => [load, load])], set("load"), state.load));
  root.replaceChildren(keys, canvas);
  redraw();
  return undefined;
}

const inLoad = (entry, state) => !state.load || entry.point.load === state.load;

function distributionSpec(data, state, entries) {
  const shown = entries.filter((entry) => !entry.hidden && inLoad(entry, state) && entry.point.curves[state.kind]);
  const curves = shown.map((entry) => cumulative(entry.point.curves[state.kind]));
  const log = state.axis === "log" && curves.some((curve) => curve.some(([x]) => x > 0));
  const domain = extent(curves.flatMap((curve) => curve.map(([x]) => x)), { log, zero: true });
  const draw = { cumulative: cumulativeLayer, tail: tailLayer, histogram: histogramLayer }[state.view];
  const bins = binEdges(domain, log, 40);
  const layers = shown.map((entry, number) => ({
    series: entry.series, dash: entry.dash, name: `${entry.name}, n = ${entry.point.curves[state.kind].n.toLocaleString("en")}`,
    format: (value) => figure(value, "share"), ...draw(curves[number], log, domain, bins),
  }));
  const tail = state.view === "tail";
  const top = state.view === "histogram" ? extent(layers.flatMap((layer) => layer.points.map(([, y]) => y)), { zero: true }) : [0, 1];
  const name = data.distributions[state.kind];
  return {
    label: `${name}: ${state.view} of ${shown.length} points. Use the arrow keys to read values.`,
    x: { title: name, unit: "s", log, domain },
    y: { title: tail ? "Share above" : state.view === "histogram" ? "Share in each bin" : "Share at or below", unit: "share", log: tail, domain: tail ? [tailFloor(curves), 1] : top },
    layers,
    ...readByX(60, (layer, at) => layer.at(at), (at) => `${name} ${state.view === "histogram" ? "near" : tail ? "above" : "at most"} ${figure(at, "s")}`),
  };
}

/* [value, share] pairs; a curve without shares contains every value. */
function cumulative(curve) {
  return curve.x.map((x, index) => [x, curve.q ? curve.q[index] : (index + 1) / curve.n]);
}

/* The share of values at or below `at`. */
function shareAt(curve, at) {
  let low = 0, high = curve.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (curve[middle][0] <= at) low = middle + 1; else high = middle;
  }
  return low ? curve[low - 1][1] : 0;
}

const visible = (curve, log) => (log ? curve.filter(([x]) => x > 0) : curve);

function cumulativeLayer(curve, log, domain) {
  const inside = visible(curve, log);
  const start = shareAt(curve, domain[0]);
  return { shape: "step", points: [[domain[0], start], ...inside, [domain[1], 1]], at: (at) => shareAt(curve, at) };
}

function tailLayer(curve, log) {
  const points = visible(curve, log).map(([x, share]) => [x, 1 - share]).filter(([, rest]) => rest > 1e-9);
  return { shape: "step", points, at: (at) => { const rest = 1 - shareAt(curve, at); return rest > 1e-9 ? rest : null; } };
}

function tailFloor(curves) {
  const rests = curves.flatMap((curve) => curve.map(([, share]) => 1 - share)).filter((rest) => rest > 1e-9);
  return Math.min(0.1, ...rests);
}

function binEdges([low, high], log, count) {
  return Array.from({ length: count + 1 }, (_, step) => (log ? low * (high / low) ** (step / count) : low + ((high - low) * step) / count));
}

function histogramLayer(curve, log, domain, edges) {
  const shares = edges.slice(1).map((edge, index) => shareAt(curve, edge) - shareAt(curve, edges[index]));
  const points = shares.flatMap((share, index) => [[edges[index], share], [edges[index + 1], share]]);
  const at = (value) => shares[Math.max(0, Math.min(shares.length - 1, edges.findIndex((edge) => edge > value) - 1))];
  return { shape: "area", points, at };
}
