/* Scales, ticks, units, and shapes that distinguish series without colour. */

const DASHES = ["none", "6 3", "2 3", "9 3 2 3", "12 4", "4 2 1 2"];
const UNITS = {
  s: [[1e6, "µs"], [1e3, "ms"], [1, "s"]],
  J: [[1e3, "mJ"], [1, "J"], [1e-3, "kJ"]],
  share: [[100, "%"]],
  seconds: [[1, "s"]],
};

/* Factor and unit in which a value of this size reads best. */
function unitFor(size, unit) {
  const steps = UNITS[unit] || [[1, unit || ""]];
  const fitting = steps.filter(([factor]) => Math.abs(size) * factor >= 1);
  return size ? fitting[fitting.length - 1] || steps[0] : steps[steps.length - 1];
}

function digits(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size < 1e-4) return value.toExponential(2);
  return value.toFixed(Math.max(0, 2 - Math.floor(Math.log10(size))));
}

function figure(value, unit) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const [factor, name] = unitFor(value, unit);
  return name === "%" ? `${digits(value * factor)}%` : `${digits(value * factor)} ${name}`.trim();
}

function interval([mean, low, high], unit) {
  if (low === null || high === null) return figure(mean, unit);
  const [factor, name] = unitFor(mean, unit);
  return `${digits(mean * factor)} [${digits(low * factor)}, ${digits(high * factor)}] ${name}`.trim();
}

/* Maps domain to range, linear or logarithmic. */
function makeScale([low, high], [from, to], log) {
  const bend = log ? Math.log10 : (value) => value;
  const unbend = log ? (value) => 10 ** value : (value) => value;
  const a = bend(low), b = bend(high);
  const span = b - a || 1;
  const scale = (value) => from + ((bend(value) - a) / span) * (to - from);
  scale.invert = (position) => unbend(a + ((position - from) / (to - from)) * span);
  scale.domain = [low, high];
  scale.log = Boolean(log);
  return scale;
}

function linearTicks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const ticks = [];
  for (let number = Math.ceil(low / step); number * step <= high + step * 1e-9; number += 1) ticks.push(number * step);
  return ticks;
}

function logTicks(low, high, count) {
  const decades = Math.log10(high / low);
  const steps = decades > count ? [1] : decades > 1.5 ? [1, 3] : [1, 2, 5];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const step of steps) {
      const value = step * 10 ** power;
      if (value >= low * 0.9999 && value <= high * 1.0001) ticks.push(value);
    }
  }
  return ticks.length > 1 ? ticks : linearTicks(low, high, count);
}

/* Ticks and labels in one unit: that of the largest value, or of the middle on a logarithmic axis. */
function axisTicks(scale, unit, count) {
  const [low, high] = scale.domain;
  const [factor, name] = unitFor(scale.log ? Math.sqrt(low * high) : high, unit);
  const values = (scale.log ? logTicks : linearTicks)(low * factor, high * factor, count);
  return { name, ticks: values.map((value) => ({ at: value / factor, text: tickText(value) })) };
}

function tickText(value) {
  if (Math.abs(value) >= 1000) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  return String(Number(value.toPrecision(3)));
}

/* Range of all values, with padding. */
function extent(values, { zero = false, log = false } = {}) {
  const known = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  if (!known.length) return log ? [0.001, 1] : [0, 1];
  const low = Math.min(...known), high = Math.max(...known);
  if (log) return low === high ? [low / 2, high * 2] : [low / 1.1, high * 1.1];
  const bottom = zero && low >= 0 ? 0 : low - (high - low) * 0.06;
  return bottom === high ? [bottom, bottom + 1] : [bottom, high + (high - bottom) * 0.06];
}

function markPath(series, x, y, size) {
  const s = size, t = size * 1.2;
  switch (series % 6) {
    case 0: return `M${x - s},${y}a${s},${s} 0 1,0 ${2 * s},0a${s},${s} 0 1,0 ${-2 * s},0`;
    case 1: return `M${x - s},${y - s}h${2 * s}v${2 * s}h${-2 * s}z`;
    case 2: return `M${x},${y - t}L${x + t},${y + s}H${x - t}z`;
    case 3: return `M${x},${y - t}L${x + t},${y}L${x},${y + t}L${x - t},${y}z`;
    case 4: return `M${x},${y + t}L${x + t},${y - s}H${x - t}z`;
    default: return `M${x - s},${y - s / 3}h${s * 2 / 3}v${-s * 2 / 3}h${s * 2 / 3}v${s * 2 / 3}h${s * 2 / 3}v${s * 2 / 3}h${-s * 2 / 3}v${s * 2 / 3}h${-s * 2 / 3}v${-s * 2 / 3}h${-s * 2 / 3}z`;
  }
}
