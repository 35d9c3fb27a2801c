/* One run over time: lanes with a common time axis and cursor. */

function timelinePlot(data) {
  const root = byId("timeline-plot"), controls = byId("timeline-plot-controls");
  const names = data.runs.map((run, number) => [String(number), `${data.series[run.series]} · ${run.load}${run.cycle === null ? "" : ` · cycle ${run.cycle}`} · ${run.status}`]);
  const first = Math.max(0, data.runs.findIndex((run) => run.status === "valid"));
  controls.append(choice("Run", names, (value) => drawRun(root, data.runs[Number(value)], names[Number(value)][1]), String(first)));
  drawRun(root, data.runs[first], names[first][1]);
}

function drawRun(root, run, name) {
  hideTip();
  const lanes = [tokenLane(run), flightLane(run), ...(run.power.length ? [powerLane(run)] : []), rowLane(run)];
  const charts = [];
  const boxes = lanes.map(() => el("div"));
  root.replaceChildren(el("p", { class: "note" }, el("strong", {}, name)), ...boxes, el("p", { class: "note" }, runNote(run)));
  lanes.forEach((lane, number) => {
    const onCursor = (cursor) => {
      const at = cursor === null ? null : typeof cursor === "number" ? cursor : cursor.at;
      charts.forEach((other, index) => { if (index !== number) other.follow(at); });
    };
    charts.push(new Chart(boxes[number], () => ({ ...lane, onCursor })));
  });
  charts.forEach((chart) => chart.draw());
}

function runNote(run) {
  const rows = run.rows.length < run.requests ? `${run.rows.length} of ${run.requests.toLocaleString("en")} requests shown` : `all ${run.requests.toLocaleString("en")} requests shown`;
  const thinned = run.power.filter((one) => one.each > 1).map((one) => `${one.device}: averaged over ${one.each} readings`);
  const power = run.power.length ? thinned.join("; ") : "no power was read";
  return `${run.id}: ${[rows, power].filter(Boolean).join("; ")}.`;
}

const timeAxis = (run, bare) => ({ title: "Time", unit: "seconds", domain: [0, run.end], bare });
const seconds = (at) => `${digits(at)} s`;

/* Bins as points at their centres. */
function binned(run, values) {
  const width = run.end / values.length;
  return values.map((value, index) => [(index + 0.5) * width, value]);
}

function lane(run, title, unit, layers) {
  return {
    label: `${title} over time of ${run.id}. Use the arrow keys to read values.`, height: 150,
    x: timeAxis(run, true),
    y: { title, unit, domain: extent(layers.flatMap((layer) => layer.points.map(([, y]) => y)), { zero: true }) },
    layers,
    ...readByX(60, (layer, at) => nearestValue(layer.points, at), seconds),
  };
}

function nearestValue(points, at) {
  if (!points.length) return null;
  return points.reduce((best, one) => (Math.abs(one[0] - at) < Math.abs(best[0] - at) ? one : best))[1];
}

function tokenLane(run) {
  return lane(run, "Output tokens/s", "tokens/s", [{ series: run.series, shape: "area", name: "output", points: binned(run, run.tokens), format: (value) => figure(value, "tokens/s") }]);
}

function flightLane(run) {
  return lane(run, "Requests in flight", "", [{ series: run.series, shape: "area", name: "in flight", points: binned(run, run.inflight), format: digits }]);
}

function powerLane(run) {
  const layers = run.power.map((one, number) => ({
    series: 7 - (number % 2), dash: number, name: one.device, format: (value) => figure(value, "W"), points: one.t.map((time, index) => [time, one.w[index]]).filter(([time]) => time >= 0 && time <= run.end),
  }));
  return lane(run, "Power", "W", layers.filter((layer) => layer.points.length));
}

function rowLane(run) {
  const each = run.rows.length > 60 ? 3 : 6;
  const find = (chart, y) => Math.max(0, Math.min(run.rows.length - 1, Math.floor((y - chart.frame.top) / each)));
  return {
    label: `${run.rows.length} requests over time of ${run.id}. Use the arrow keys to step through them.`, height: 24 + 42 + Math.max(1, run.rows.length) * each,
    x: timeAxis(run, false), y: { title: "Requests", unit: "", domain: [0, 1], hidden: true }, layers: [],
    draw: (chart) => svg("g", { class: `c${run.series % 8}` }, ...run.rows.flatMap((row, number) => rowBars(chart, row, number, each))),
    near: (chart, x, y) => (run.rows.length ? { number: find(chart, y), at: chart.x.invert(x) } : null),
    stops: () => run.rows.map((row, number) => ({ number, at: row[2] })),
    where: (chart, cursor) => [chart.x(cursor.at), chart.frame.top + cursor.number * each],
    read: (chart, cursor) => ({
      tip: rowTip(run.rows[cursor.number]),
      parts: [svg("rect", { class: "row-focus", x: chart.frame.left, y: chart.frame.top + cursor.number * each, width: chart.frame.right - chart.frame.left, height: each }), chart.cursorLine(cursor.at)],
    }),
  };
}

function rowBars(chart, [, intended, sent, first, last, end, , error], number, each) {
  const y = chart.frame.top + number * each + 0.5, height = each - 1;
  const edge = (at) => Math.min(chart.frame.right, chart.x(at));
  const bar = (kind, from, to) => (from === null || to === null || to < from ? null : svg("rect", { class: kind, x: edge(from), y, height, width: Math.max(0.7, edge(to) - edge(from)) }));
  const over = end === null ? sent : end;
  const cross = error === null ? null : svg("path", { class: "bar-failed", d: `M${edge(over) - 3},${y - 1}l6,${height + 2}m0,${-height - 2}l-6,${height + 2}` });
  return [bar("bar-lag", intended, sent), bar("bar-wait", sent, first === null ? over : first), bar("bar-flow", first, last), cross].filter(Boolean);
}

function rowTip([index, intended, sent, first, last, end, tokens, error]) {
  const since = (to, from) => (to === null || from === null ? "–" : figure(to - from, "s"));
  const rows = [["Sent at", seconds(sent)], ["Send lag", since(sent, intended)], ["First token after", since(first, sent)], ["Completed after", since(end, sent)]];
  if (tokens !== null) rows.push(["Output tokens", String(tokens)]);
  if (tokens > 1) rows.push(["Per output token", since(last === null || first === null ? null : (last - first) / (tokens - 1), 0)]);
  if (error !== null) rows.push(["Failed", error]);
  return { title: `Request ${index}`, rows: rows.map(([name, value]) => ({ name, value })) };
}
